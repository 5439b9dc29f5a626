from mmap import mmap

def count_rows(
    data: bytes | mmap,
    place: int,
    stop: int,
    needs_image: bool,
    tau: float,
    sources: dict[str, int] | None,
    mark: bytes,
    with_details: bool,
    /,
) -> tuple[bytearray, list[tuple[int, int, int]], bytearray]: ...
