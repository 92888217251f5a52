/* a comment
