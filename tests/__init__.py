"""The tests; a regular package, because pgx installs one of the same name, which would come before a namespace."""
