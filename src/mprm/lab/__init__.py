"""A small world to try mprm on: the sample corpus that the package ships."""
