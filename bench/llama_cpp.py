"""What the scripts whose peer is llama.cpp share: GGUF files, and its CPU backend in npm's node-llama-cpp.

`npm install --prefix build/llama node-llama-cpp` installs it. Without it the peer is skipped, and the scripts say so.
"""

import json
import pathlib
import shutil
import struct

import harness

F32, BF16 = 0, 30  # GGUF's numbers of element types
ELEMENT_BYTES = {F32: 4, BF16: 2}
ALIGNMENT = 32


def add_option(parser):
    parser.add_argument("--peer", type=pathlib.Path, default=harness.ROOT / "build/llama", help="folder with node_modules/node-llama-cpp")


def is_there(peer):
    """Whether llama.cpp is installed; says so if it isn't."""
    found = shutil.which("node") is not None and (peer / "node_modules/node-llama-cpp").is_dir()
    if not found:
        harness.log(f"llama.cpp skipped: npm install --prefix {peer} node-llama-cpp")
    return found


def run(script, peer, *arguments):
    """What one of this folder's .mjs scripts prints as its last line, parsed; None if it failed."""
    output = harness.run(["node", pathlib.Path(__file__).parent / script, peer, *map(str, arguments)], limit_s=300)
    return None if output is None else json.loads(output.splitlines()[-1])


def text(value):
    """A text as GGUF has it."""
    return struct.pack("<Q", len(value.encode())) + value.encode()


def typed(value):
    """The number of its type and the bytes of a value of metadata: bool, uint32, float32, text, or a list of one of these (numbers are
    int32)."""
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, str):
        return 8, text(value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    kind = {str: 8, float: 6, int: 5}[type(value[0])]
    return 9, struct.pack("<IQ", kind, len(value)) + b"".join(typed(element)[1] for element in value)


def write_gguf(path, metadata, tensors):
    """Writes a file. `tensors`: name, sizes (the fastest first), element type, and a function that returns the bytes, of each."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        number, data = typed(value)
        head += text(key) + struct.pack("<I", number) + data
    at = 0
    for name, sizes, kind, _ in tensors:
        head += text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, at)
        count = ELEMENT_BYTES[kind]
        for size in sizes:
            count *= size
        at += count + -count % ALIGNMENT
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % ALIGNMENT))
        for _, _, _, make in tensors:
            data = make()
            file.write(data + bytes(-len(data) % ALIGNMENT))
