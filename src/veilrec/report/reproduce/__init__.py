"""A table or figure of a paper: theirs beside ours."""
