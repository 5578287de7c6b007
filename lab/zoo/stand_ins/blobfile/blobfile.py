"""The functions of blobfile that deal with local files."""

from os import listdir
from os.path import basename, dirname, exists, isdir, join

BlobFile = open

__all__ = ["BlobFile", "basename", "dirname", "exists", "isdir", "join", "listdir"]
