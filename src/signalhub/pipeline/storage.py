"""Folders of the lake through Hadoop, so that any of its file systems works."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


class Storage:
    """One folder."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        jvm = spark.sparkContext._jvm
        assert jvm is not None
        # By its whole name: for `jvm.org` and `jvm.org.apache`, Java would look into all JARs.
        self._path: Any = getattr(jvm, "org.apache.hadoop.fs.Path")
        self._folder = folder
        configuration = spark.sparkContext._jsc.hadoopConfiguration()
        self._files: Any = self._path(folder).getFileSystem(configuration)

    def path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def exists(self) -> bool:
        return bool(self._files.exists(self._path(self._folder)))

    def names(self) -> list[str]:
        """Return its contents, sorted."""
        listed = self._files.listStatus(self._path(self._folder))
        return sorted(one.getPath().getName() for one in listed)

    def modified_ms(self, name: str) -> int:
        """Return when a file was written."""
        return int(self._files.getFileStatus(self._path(self.path(name))).getModificationTime())

    def delete(self, name: str) -> bool:
        """Delete a file; return whether it existed. Raises `OSError` if it still does."""
        path = self._path(self.path(name))
        is_deleted = bool(self._files.delete(path, False))
        if not is_deleted and self._files.exists(path):
            raise OSError(f"{self.path(name)} cannot be deleted; check the rights of its folder")
        return is_deleted

    def delete_all(self) -> None:
        """Delete the folder with everything in it."""
        self._files.delete(self._path(self._folder), True)
