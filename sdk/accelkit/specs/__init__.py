"""The specifications that plugins implement. No module in this package imports torch at module level."""
