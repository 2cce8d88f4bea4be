"""Reading and writing safetensors files (github.com/huggingface/safetensors): 8 bytes of header length, JSON, data. Debian has no
package of it. Shards are found by model.safetensors.index.json, as on the hub."""
import json
import pathlib
import struct

import numpy
import torch

STORED = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
          "I32": torch.int32, "U8": torch.uint8}
# numpy has no bf16: any 2-byte integer carries its bits.
CARRIER = {"F64": numpy.float64, "F32": numpy.float32, "F16": numpy.float16, "BF16": numpy.int16, "I64": numpy.int64,
           "I32": numpy.int32, "U8": numpy.uint8}


def raw_bytes(tensor, dtype):
    """The little-endian bytes of a tensor, converted to dtype."""
    bits = tensor.detach().to(STORED[dtype]).contiguous()
    return (bits.view(torch.int16) if dtype == "BF16" else bits).numpy().tobytes()


def write_file(path, shapes, make, dtype):
    """Writes one file. shapes: name -> shape; make(name) -> tensor, asked for one name after another, so that no more than one
    tensor is held."""
    size = torch.empty((), dtype=STORED[dtype]).element_size()
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        begin, end = end, end + size * int(numpy.prod(shape, dtype=numpy.int64))
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in shapes:
            file.write(raw_bytes(make(name), dtype))


def write_tensors(path, tensors, dtype="F64"):
    write_file(path, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, tensors.__getitem__, dtype)


def read_file(path):
    """name -> tensor, in the file's dtype."""
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        values = numpy.frombuffer(data[8 + length + begin:8 + length + end], dtype=CARRIER[entry["dtype"]]).copy()
        tensor = torch.from_numpy(values)
        tensors[name] = (tensor.view(torch.bfloat16) if entry["dtype"] == "BF16" else tensor).reshape(entry["shape"])
    return tensors


def read_folder(folder):
    """All tensors of a model folder: those of its shards, else of model.safetensors."""
    folder = pathlib.Path(folder)
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return read_file(folder / "model.safetensors")
    tensors, files = {}, json.loads(index.read_text())["weight_map"]
    for name in sorted(set(files.values())):
        tensors.update(read_file(folder / name))
    if set(tensors) != set(files):
        raise ValueError(f"{index}: weight_map and the shards differ in {sorted(set(tensors) ^ set(files))[:5]}")
    return tensors
