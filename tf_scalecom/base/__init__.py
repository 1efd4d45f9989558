"""What any room may use: whole files, tables of text, command-line argument types."""
