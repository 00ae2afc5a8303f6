"""A program that is shipped to be run by `allranks demo`, never imported."""
