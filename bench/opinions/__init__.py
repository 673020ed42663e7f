"""What a second tool says of the site that allocates most in a program that others wrote, a file per runtime."""
