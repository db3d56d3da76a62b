"""The few calls of libcuda that memory_by_driver.py needs, and a process that makes chunks."""
import ctypes
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

PINNED, ON_DEVICE, DESCRIPTOR, READ_WRITE = 1, 1, 1, 3


class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class Kind(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [("type", c_int), ("handle_types", c_int), ("location", Location),
                ("meta", c_void_p), ("flags", ctypes.c_ubyte * 8)]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", c_int)]


class Driver:
    """Of one GPU, whose primary context is current."""

    def __init__(self, gpu):
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._gpu = gpu

    def call(self, name, *args):
        result = getattr(self._cuda, name)(*args)
        if result != 0:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(result, byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'?').decode()}")

    def enter(self):
        """Makes the primary context current in a process without torch."""
        self.call("cuInit", 0)
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), self._gpu)
        self.call("cuCtxSetCurrent", context)

    def create(self, size, exportable=False):
        kind = Kind(PINNED, DESCRIPTOR if exportable else 0, Location(ON_DEVICE, self._gpu))
        handle = c_uint64()
        self.call("cuMemCreate", byref(handle), c_size_t(size), byref(kind), c_uint64(0))
        return handle.value

    def release(self, handle):
        self.call("cuMemRelease", c_uint64(handle))

    def reserve(self, size):
        address = c_uint64()
        self.call("cuMemAddressReserve", byref(address), c_size_t(size), c_size_t(0), c_uint64(0),
                  c_uint64(0))
        return address.value

    def unreserve(self, address, size):
        self.call("cuMemAddressFree", c_uint64(address), c_size_t(size))

    def map(self, address, size, handle):
        self.call("cuMemMap", c_uint64(address), c_size_t(size), c_size_t(0), c_uint64(handle),
                  c_uint64(0))
        access = Access(Location(ON_DEVICE, self._gpu), READ_WRITE)
        self.call("cuMemSetAccess", c_uint64(address), c_size_t(size), byref(access), c_size_t(1))

    def unmap(self, address, size):
        self.call("cuMemUnmap", c_uint64(address), c_size_t(size))

    def is_mapped(self, address):
        handle = c_uint64()
        if self._cuda.cuMemRetainAllocationHandle(byref(handle), c_void_p(address)) != 0:
            return False
        self.release(handle.value)
        return True

    def give(self, handle):
        """As a descriptor."""
        descriptor = c_int()
        self.call("cuMemExportToShareableHandle", byref(descriptor), c_uint64(handle), DESCRIPTOR,
                  c_uint64(0))
        return descriptor.value

    def take(self, descriptor):
        handle = c_uint64()
        self.call("cuMemImportFromShareableHandle", byref(handle), c_void_p(descriptor),
                  DESCRIPTOR)
        return handle.value

    @staticmethod
    def write_handle(word, handle):
        c_uint64.from_address(word).value = handle

    def stream(self):
        stream = c_void_p()
        self.call("cuStreamCreate", byref(stream), 1)
        return stream

    def wait(self, stream=None):
        self.call("cuStreamSynchronize", stream)

    def pin(self, size):
        slab = c_void_p()
        self.call("cuMemHostAlloc", byref(slab), c_size_t(size), 1)
        return slab.value

    def unpin(self, slab):
        self.call("cuMemFreeHost", c_void_p(slab))

    def copy_in(self, device, host, size, stream):
        self.call("cuMemcpyHtoDAsync_v2", c_uint64(device), c_void_p(host), c_size_t(size), stream)

    def copy_out(self, device, host, size, stream):
        self.call("cuMemcpyDtoHAsync_v2", c_void_p(host), c_uint64(device), c_size_t(size), stream)

    def fill(self, device, size, stream=None, byte=1):
        self.call("cuMemsetD8Async", c_uint64(device), ctypes.c_ubyte(byte), c_size_t(size), stream)


def make_chunks(pipe, sizes):
    """A process that owns chunks, gives them away as descriptors, and follows its orders."""
    import os
    from multiprocessing.reduction import send_handle
    cuda = Driver(0)
    cuda.enter()
    chunks = []
    for size in sizes:
        handle = cuda.create(size, exportable=True)
        address = cuda.reserve(size)
        cuda.map(address, size, handle)
        descriptor = cuda.give(handle)
        send_handle(pipe, descriptor, os.getppid())
        os.close(descriptor)
        chunks.append((address, size, handle))
    pipe.send("made")
    while True:
        word, *more = pipe.recv()
        if word == "fill":
            for address, size, _ in chunks:
                cuda.fill(address, size, byte=more[0])
            cuda.wait()
            pipe.send("done")
        elif word == "first":
            found = ctypes.c_ubyte()
            cuda.call("cuMemcpyDtoH_v2", byref(found), c_uint64(chunks[0][0]), c_size_t(1))
            pipe.send(found.value)
        elif word == "let go":
            for address, size, handle in chunks:
                cuda.unmap(address, size)
                cuda.release(handle)
            pipe.send("done")
        else:
            return
