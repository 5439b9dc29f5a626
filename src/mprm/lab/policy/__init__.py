"""Small policies of the lab: real vision-language models, trained from nothing on the lab's solutions."""
