"""The client of a cloud that Composer imports for its logger there."""
