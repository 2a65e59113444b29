"""Image sources: find the releases of vendors, describe their files, and build BootImages from them."""
