# SPDX-License-Identifier: MIT OR Apache-2.0
#
# scripts/mpi4py-suite --nodes appends this to arrayimpl.py of its copy of mpi4py's tests: one more kind of arrays, of which
# an element is 16 KiB of equal numbers with gaps between them, a derived datatype, so that the tests' own calls send
# messages that libcopy_mpi.so takes over RDMA. A gap that changes, or numbers of an element that differ, fail the test.

ELEMENT_BYTES = 16384
# In numbers: from 128 bytes (b) to 1 KiB (q, d), for each of the methods that move bytes.
PIECE, GAP = 128, 64
MARK = 77


class ArrayWithGaps(BaseArray):
    backend = "gaps"

    @staticmethod
    def pieces(itemsize):
        return ELEMENT_BYTES // (PIECE * itemsize)

    @classmethod
    def datatype(cls, basic):
        pieces = cls.pieces(basic.size)
        vector = basic.Create_vector(pieces, PIECE, PIECE + GAP)
        # A gap is behind the last piece, too.
        element = vector.Create_resized(0, pieces * (PIECE + GAP) * basic.size)
        vector.Free()
        return element.Commit()

    def __init__(self, arg, typecode, shape=None):
        self.unit = array.array(typecode).itemsize
        self.numbers = self.pieces(self.unit) * (PIECE + GAP)
        if isinstance(arg, (int, float)):
            shape = () if shape is None else shape
            size = product(shape if hasattr(shape, "__len__") else (shape,))
            self.array = self.element(arg, typecode) * int(size)
        else:
            self.array = array.array(typecode)
            for value in arg:
                self.array += self.element(value, typecode)

    def element(self, value, typecode):
        piece = array.array(typecode, [value]) * PIECE
        gap = array.array(typecode, [MARK]) * GAP
        return (piece + gap) * self.pieces(self.unit)

    def __len__(self):
        return len(self.array) // self.numbers

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        # Of a range, for indices below zero and those that are out of it.
        begin = range(len(self))[index] * self.numbers
        found = self.array[begin : begin + self.numbers]
        if found != self.element(found[0], self.typecode):
            raise AssertionError(f"element {index} is torn: {bytes(found)!r}")
        return found[0]

    def __setitem__(self, index, value):
        if isinstance(index, slice):
            for i, each in zip(range(*index.indices(len(self))), value):
                self[i] = each
            return
        begin = range(len(self))[index] * self.numbers
        self.array[begin : begin + self.numbers] = self.element(
            value, self.typecode
        )

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    @property
    def address(self):
        return self.array.buffer_info()[0]

    @property
    def typecode(self):
        return self.array.typecode

    @property
    def itemsize(self):
        return self.unit

    @property
    def flat(self):
        return self

    @property
    def size(self):
        return len(self)


ArrayWithGaps.TypeMap = {
    typecode: ArrayWithGaps.datatype(basic)
    for typecode, basic in BaseArray.TypeMap.items()
}
# Beside short arrays without gaps.
ArrayBackends[:] = [ArrayArray, ArrayWithGaps]
