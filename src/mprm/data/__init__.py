"""What flows between the stages: records, formats, validation, images, corpora, outputs."""
