"""Collectives of one replica, under instance keys that are never counted and never leak.

TensorFlow's runtime pairs up the calls of one collective on all replicas by an integer, the
instance key, and keeps a record of every key it has ever seen (kind, dtype, shape, source).
TensorFlow itself draws a fresh key for each call. That leaks about 1.4 kB a call, costs a round
trip to the group's leader each time, and falls out of step once a function is aborted at the end
of data on one replica but not on another.

Here a key is a pure function of what the collective *is*: its kind, dtype, shape, source and the
caller's `site`. It is a constant in the graph, equal on all replicas whenever and in whatever
order they trace, and the runtime holds one record per signature.

Why successive calls may share a key: the runtime files a buffer under (key, sender, receiver,
part). Each such entry has exactly one producer and one consumer, and a call ends on a replica
only when all its sends were taken and all its receives have arrived. A launcher makes its calls
one after the other, so the second cannot meet an entry of the first. This holds as long as all
replicas issue the same sequence of collectives; hence a collective that a failing step may or may
not have reached must depend on that step's data (`control_input`).
"""

import contextlib
import hashlib

import numpy as np
import tensorflow as tf

from tf_scalecom.compat import tensorflow_distribute
from tf_scalecom.compat.tensorflow_runtime import ResourceVariable

# CollectiveKeys counts the keys of variable creation upwards from 100: stay clear of them.
_FIRST_KEY = 2**30
_KEY_SPACE = 2**30

# Sizes of the form m * 2**e with 8 <= m < 16 pad by at most one eighth. Sizes from 2**(e + 3) on
# need exponent e; 512 is more than the number of such sizes below 2**62.
_EXPONENT_THRESHOLDS = [2**power for power in range(4, 62)]
_NUM_SIZE_CLASSES = 512

# What the runtime's gather and broadcast cannot move, and travels as something else: as numbers
# that can hold it,
_WIRE_DTYPES = {
    tf.bfloat16: tf.float32,
    tf.dtypes.experimental.float8_e4m3fn: tf.float32,
    tf.dtypes.experimental.float8_e5m2: tf.float32,
    tf.bool: tf.int32,
    tf.dtypes.experimental.int4: tf.int32,
    tf.int8: tf.int32,
    tf.dtypes.experimental.uint4: tf.int32,
    tf.uint8: tf.int32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
}
# or as its bits. Sums of these are sums of those.
_BITS = {
    tf.complex64: tf.float32,
    tf.complex128: tf.float64,
    tf.uint64: tf.int64,
    tf.qint8: tf.int8,
    tf.quint8: tf.uint8,
    tf.qint32: tf.int32,
}
_AS_IS = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
CARRIED = (*_AS_IS, *_WIRE_DTYPES, *_BITS, tf.string)

_BYTES = [bytes([code]) for code in range(256)]

# Bytes that travel with their number; the rest of longer strings follows.
_LENGTH_BYTES, _SHORT_BYTES = 4, 252


class InstanceKeys:
    """The instance keys of one group, a function of the collective's signature.

    Attributes:
        step: name of what the collectives are part of; those of different ones share no key.
    """

    def __init__(self):
        self.step = ""
        self._ranges = {}

    def first(self, signature, length=1):
        """Returns the first of `length` consecutive keys that belong to `signature`.

        Args:
            signature: tuple of strings and integers which says what the collective is. It must
                be equal on all replicas.
            length: number of keys wanted, e.g. one per possible source.
        """
        signature = (*signature, self.step)
        if signature not in self._ranges:
            digest = hashlib.sha256(repr(signature).encode()).digest()
            slots = _KEY_SPACE // length
            slot = int.from_bytes(digest[:8], "big") % slots
            # Replicas agree on the outcome of a clash only if both signatures come up in the
            # same order everywhere; with hundreds of signatures in 2**30 keys there is hardly one.
            while self._is_taken(_FIRST_KEY + slot * length, length):
                slot = (slot + 1) % slots
            self._ranges[signature] = (_FIRST_KEY + slot * length, length)
        return self._ranges[signature][0]

    def describe(self, key):
        """The collective that a key belongs to, in words, the same on all replicas; its step."""
        # A list: another thread may be tracing, and add keys.
        for (kind, dtype, *shape, site, step), (first, length) in list(self._ranges.items()):
            if first <= key < first + length:
                words = [f"{kind} of {dtype} {shape}", site, step]
                if length > 1:
                    # Workers that each take themselves for the sender do not meet.
                    which = "from replica" if kind == "broadcast" else "size class"
                    words.append(f"{which} {key - first}")
                return ", ".join(filter(None, words)), step
        return "a collective", ""

    def _is_taken(self, first, length):
        return any(
            first < taken_first + taken_length and taken_first < first + length
            for taken_first, taken_length in self._ranges.values()
        )


class CollectiveLauncher(tensorflow_distribute.CollectiveReplicaLauncher):
    """Launches collectives on one replica, in eager mode and in graphs, conds and loops included.

    Attributes:
        begun, ended: int64 variables, the number of the call that began and ended last. A call
            is under way while they differ.
        key: int32 variable, the instance key of the call that began last.

    Tensors whose shape is not known statically, and gathers, whose operands may differ in size
    between replicas, travel flat and padded to one of a fixed list of sizes, so that they too
    use a bounded number of keys.
    """

    def __init__(self, group_key, group_size, collective_keys, device, options):
        super().__init__(group_key, group_size, collective_keys, device, options)
        self._keys = InstanceKeys()
        self._steps = {}
        self._host_device = tensorflow_distribute.device_of_host(device)
        with tf.init_scope(), tf.device(self._host_device):
            self.begun = ResourceVariable(0, dtype=tf.int64)
            self.ended = ResourceVariable(0, dtype=tf.int64)
            self.key = ResourceVariable(0, dtype=tf.int32)

    def last_call(self):
        """The call that began last, in words that are the same on all replicas; and what for."""
        call, step = self._keys.describe(self.key.numpy())
        return call, self._steps.get(step, "")

    @contextlib.contextmanager
    def within(self, step, words):
        """Collectives launched inside are part of `step`, and meet no others.

        Args:
            step: a name that is the same on all replicas.
            words: what it is, for this replica's people.
        """
        self._steps[step] = words
        self._keys.step = step
        try:
            yield
        finally:
            self._keys.step = ""

    @property
    def device(self) -> str:
        """Name of the replica's device."""
        return self._device

    def all_reduce_list(self, values):
        """Sums dense tensors and `tf.IndexedSlices` over all replicas.

        Args:
            values: list, of the same shapes and dtypes on all replicas, but for the number of
                slices. In a graph dense tensors of one dtype travel together, in packs of the
                options' `bytes_per_pack`; the last one first, as gradients are computed.

        Returns:
            The sums, as a list.
        """
        tensors = {i: v for i, v in enumerate(values) if not isinstance(v, tf.IndexedSlices)}
        places = list(reversed(tensors))
        packs = tensorflow_distribute.group_by_size(
            [tensors[i] for i in places], self._options.bytes_per_pack
        )
        sums = dict(zip(places, self.batch_all_reduce(packs), strict=True))
        return [
            sums[i] if i in sums else self.all_reduce_indexed_slices(value)
            for i, value in enumerate(values)
        ]

    def batch_all_reduce(self, input_tensor_packs, options=None):
        """As TensorFlow's, for tensors of any dtypes: a pack becomes one buffer, of one dtype."""
        reduced = []
        for pack in input_tensor_packs:
            sums = {}
            for dtype in dict.fromkeys(t.dtype for t in pack):
                places = [i for i, t in enumerate(pack) if t.dtype == dtype]
                same = super().batch_all_reduce([[pack[i] for i in places]], options)
                sums |= zip(places, same, strict=True)
            reduced += [sums[i] for i in range(len(pack))]
        return reduced

    def all_reduce(self, input_tensor, control_input=None, options=None, site=""):
        """Sums a dense tensor over all replicas.

        Args:
            input_tensor: tensor of the same shape and dtype on all replicas. Whether its shape is
                known statically must be alike on all replicas too.
            control_input: tensor or operation (or a list of them) to run first, or None.
            options: `tf.distribute.experimental.CommunicationOptions` that override the
                launcher's, or None.
            site: name of the place this is called from. Collectives of different sites never
                share a key.

        Returns:
            The sum, on this launcher's device.
        """
        tensor = tf.convert_to_tensor(input_tensor)
        if tensor.dtype in _BITS:
            bits = tf.bitcast(tensor, _BITS[tensor.dtype])
            return tf.bitcast(self.all_reduce(bits, control_input, options, site), tensor.dtype)
        with self._placed(control_input):
            if self._group_size == 1 or tensor.shape.num_elements() == 0:
                return tf.identity(tensor)
            if tensor.shape.is_fully_defined():
                signature = ("reduce", tensor.dtype.name, *tensor.shape.as_list(), site)
                key = self._keys.first(signature)
                return self._launch(self._all_reduce_v2, tensor, key, options)
            signature = ("reduce", tensor.dtype.name, "any", site)
            size, key = self._size_class(tf.size(tensor, out_type=tf.int64), signature)
            padded = _pad_flat(tensor, size)
            reduced = self._launch(self._all_reduce_v2, padded, key, options)
            return tf.ensure_shape(
                tf.reshape(reduced[: tf.size(tensor)], tf.shape(tensor)), tensor.shape
            )

    def broadcast(
        self,
        tensor,
        is_source,
        source_rank,
        shape,
        dtype,
        control_input=None,
        options=None,
        site="",
    ):
        """Gives every replica the tensor of one of them, which may be known only at run time.

        Args:
            tensor: the tensor to send, or a function without arguments that returns it; the
                function runs on the source alone and must launch no collective.
            is_source: bool scalar, true on exactly one replica.
            source_rank: int32 scalar in [0, group size), the same on all replicas: which
                replica is the source, in any numbering.
            shape: static shape of the tensor.
            dtype: its dtype, which must be one of a fixed size.
            control_input: as in `all_reduce`.
            options: as in `all_reduce`.
            site: as in `all_reduce`.

        Returns:
            The source's tensor, on this launcher's device.
        """
        shape = tf.TensorShape(shape).as_list()
        dtype = tf.as_dtype(dtype)
        if dtype in _BITS:
            bits = _BITS[dtype]
            parts = [dtype.size // bits.size] if dtype.size > bits.size else []
            words = self.broadcast(
                lambda: tf.bitcast(tensor() if callable(tensor) else tensor, bits),
                is_source,
                source_rank,
                shape + parts,
                bits,
                control_input,
                options,
                site,
            )
            return tf.bitcast(words, dtype)
        wire_dtype = _WIRE_DTYPES.get(dtype, dtype)
        signature = ("broadcast", wire_dtype.name, *shape, site)

        def value():
            return tf.cast(
                tf.ensure_shape(tensor() if callable(tensor) else tensor, shape), wire_dtype
            )

        def send():
            with tf.device(self._device):
                return self._launch(tensorflow_distribute.broadcast_send, value(), key, options)

        def receive():
            def receive_value(shape, **arguments):
                return tensorflow_distribute.broadcast_receive(shape, wire_dtype, **arguments)

            with tf.device(self._device):
                return self._launch(receive_value, shape, key, options)

        with self._placed(control_input):
            if 0 in shape:
                return tf.zeros(shape, dtype)  # sent, it would crash the runtime
            if self._group_size == 1:
                return tf.cast(value(), dtype)
            with tf.device(self._host_device):
                key = self._keys.first(signature, self._group_size) + tf.cast(source_rank, tf.int32)
            return tf.cast(tf.ensure_shape(tf.cond(is_source, send, receive), shape), dtype)

    def all_gather(self, input_tensor, axis, options=None, site=""):
        """Concatenates the tensors of all replicas along `axis`, in the order of their ranks.

        Args:
            input_tensor: tensor of the same rank and dtype on all replicas, strings included, and
                of the same size along all other axes; a replica with nothing to add may have any
                size there.
            axis: int, or int32 scalar tensor, in [0, rank).
            options: as in `all_reduce`.
            site: as in `all_reduce`.

        Returns:
            The concatenation, on this launcher's device.

        Raises:
            tf.errors.InvalidArgumentError: The sizes along other axes differ; on all replicas.
        """
        tensor = tf.convert_to_tensor(input_tensor)
        if tensor.dtype == tf.string:
            return self._all_gather_strings(tensor, axis, options, site)
        if tensor.dtype in _BITS:
            bits = tf.bitcast(tensor, _BITS[tensor.dtype])
            return tf.bitcast(self.all_gather(bits, axis, options, site), tensor.dtype)
        with self._placed(tensor):
            order = tf.concat([[axis], tf.range(axis), tf.range(axis + 1, tf.rank(tensor))], axis=0)
            rows = tf.transpose(tensor, order)
            shapes = self._all_gather(tf.shape(rows)[tf.newaxis], options, site)
            counts, row_shape = shapes[:, 0], _common_row_shape(shapes)
            gathered = self._gather_rows(rows, counts, row_shape, options, site)
            gathered = tf.transpose(gathered, tf.math.invert_permutation(order))
            static_axis = tf.get_static_value(axis)
            static_shape = [
                None if static_axis is None or dimension == static_axis else size
                for dimension, size in enumerate(tensor.shape)
            ]
            return tf.ensure_shape(gathered, static_shape)

    def stack(self, tensor, site=""):
        """Gives every replica the tensors of all.

        Args:
            tensor: tensor of one static shape on all replicas, of what the runtime gathers:
                float16, float32, float64, int32 or int64.
            site: as in `all_reduce`.

        Returns:
            [replica, ...], on this launcher's device.
        """
        with self._placed(None):
            gathered = self._all_gather(tensor[tf.newaxis], None, site)
            return tf.ensure_shape(gathered, [self._group_size, *tensor.shape])

    def all_gather_bytes(self, data, site=""):
        """Gives every replica the bytes of all, in one collective where all are short.

        Outside of graphs alone. What `all_gather` does to find sizes and to pad is done in Python
        here: TensorFlow takes its time for the first call of each of the operations.

        Args:
            data: this replica's bytes, of any number.
            site: as in `all_reduce`.

        Returns:
            list of bytes, in the order of the ranks.
        """
        begin = len(data).to_bytes(_LENGTH_BYTES, "little") + data[:_SHORT_BYTES]
        begins = self._stack_bytes(begin, _LENGTH_BYTES + _SHORT_BYTES, site)
        lengths = [int.from_bytes(each[:_LENGTH_BYTES], "little") for each in begins]
        parts = [each[_LENGTH_BYTES:] for each in begins]
        if max(lengths) > _SHORT_BYTES:
            size = 1 << (max(lengths) - 1).bit_length()  # of few sizes, as each has a key
            rests = self._stack_bytes(data[_SHORT_BYTES:], size, site)
            parts = [part + rest for part, rest in zip(parts, rests, strict=True)]
        return [part[:length] for part, length in zip(parts, lengths, strict=True)]

    def all_to_all(self, tensor, site=""):
        """Gives every replica one tensor of each.

        Args:
            tensor: [receiving replica, ...] of one static shape on all replicas; float16, bfloat16,
                float32, float64, int32 or int64.
            site: as in `all_reduce`.

        Returns:
            [sending replica, ...], on this launcher's device.
        """
        with self._placed(None):
            if self._group_size == 1:
                return tf.identity(tensor)
            signature = ("all-to-all", tensor.dtype.name, *tensor.shape.as_list(), site)
            return self._launch(self._all_to_all_v2, tensor, self._keys.first(signature), None)

    def _all_gather_strings(self, strings, axis, options, site):
        """Concatenates strings; they travel as their bytes, four to an integer."""
        with self._placed(strings), tf.device(self._host_device):
            lengths = tf.strings.length(strings)
            longest = tf.reduce_max(tf.concat([[1], tf.reshape(lengths, [-1])], axis=0))
            longest = tf.reduce_max(self._all_gather(longest[tf.newaxis], options, site))
            words = tf.io.decode_raw(strings, tf.int32, fixed_length=(longest + 3) // 4 * 4)
            words = self.all_gather(words, axis, options, site)
            lengths = self.all_gather(lengths, axis, options, site)
            codes = tf.cast(tf.bitcast(words, tf.uint8), tf.int32)
            padded = tf.strings.reduce_join(tf.gather(_BYTES, codes), axis=[-1, -2])
            return tf.strings.substr(padded, tf.zeros_like(lengths), lengths)

    def all_reduce_indexed_slices(self, input_slices, options=None, site=""):
        """Concatenates the slices of all replicas, which sums what they stand for.

        Args:
            input_slices: `tf.IndexedSlices` with any number of slices.
            options: as in `all_reduce`.
            site: as in `all_reduce`.
        """
        with self._placed(input_slices.values):
            counts = self._all_gather(tf.shape(input_slices.indices), options, site)
            slice_shape = tf.shape(input_slices.values)[1:]
            values = self._gather_rows(input_slices.values, counts, slice_shape, options, site)
            indices = self._gather_rows(input_slices.indices, counts, [], options, site)
            return tf.IndexedSlices(
                tf.ensure_shape(values, [None, *input_slices.values.shape[1:]]),
                tf.ensure_shape(indices, [None]),
                input_slices.dense_shape,
            )

    def _all_gather(self, input_tensor, options, site=""):
        """Concatenates tensors of one static shape along the first axis."""
        if self._group_size == 1:
            return tf.identity(input_tensor)
        signature = ("gather", input_tensor.dtype.name, *input_tensor.shape.as_list(), site)
        return self._launch(self._all_gather_v2, input_tensor, self._keys.first(signature), options)

    def _stack_bytes(self, data, size, site):
        """The bytes of all replicas, each filled up to a size that is a multiple of 4."""
        words = np.frombuffer(data.ljust(size, b"\0"), np.int32)
        with self._placed(None):
            gathered = self._all_gather(tf.constant(words[np.newaxis]), None, site)
        return [row.tobytes() for row in gathered.numpy()]

    def _gather_rows(self, rows, counts, row_shape, options, site):
        """Concatenates tensors along the first axis, `counts[i]` rows from rank i."""
        if self._group_size == 1:
            return tf.identity(rows)
        wire_dtype = _WIRE_DTYPES.get(rows.dtype, rows.dtype)
        row_size = tf.reduce_prod(tf.cast(row_shape, tf.int64))
        counts = tf.cast(counts, tf.int64)
        signature = ("gather", wire_dtype.name, "any", site)
        size, key = self._size_class(tf.reduce_max(counts) * row_size, signature)
        gathered = self._launch(
            self._all_gather_v2, _pad_flat(tf.cast(rows, wire_dtype), size), key, options
        )
        parts = [
            gathered[rank * size : rank * size + counts[rank] * row_size]
            for rank in range(self._group_size)
        ]
        shape = tf.concat([[-1], tf.cast(row_shape, tf.int32)], axis=0)
        # With rows of size zero, -1 would be ambiguous.
        shape = tf.tensor_scatter_nd_update(
            shape, [[0]], [tf.cast(tf.reduce_sum(counts), tf.int32)]
        )
        return tf.cast(tf.reshape(tf.concat(parts, axis=0), shape), rows.dtype)

    def _size_class(self, num_elements, signature):
        """Returns the size to pad `num_elements` (int64 scalar) to, and that size's key."""
        with tf.device(self._host_device):
            exponent = tf.reduce_sum(tf.cast(num_elements >= _EXPONENT_THRESHOLDS, tf.int64))
            unit = tf.bitwise.left_shift(tf.constant(1, tf.int64), exponent)
            multiple = tf.maximum((num_elements + unit - 1) // unit, 1)
            size_class = tf.cast(8 * exponent + multiple, tf.int32)
            return multiple * unit, self._keys.first(signature, _NUM_SIZE_CLASSES) + size_class

    # The token is what tells automatic control dependencies that these calls concern this replica
    # alone. Without it they would have the call on one device of this process wait for the end of
    # the same call on another.

    def _all_reduce_v2(self, operand, **arguments):
        return tensorflow_distribute.all_reduce(
            operand, ordering_token=self._ordering_token.handle, **arguments
        )

    def _all_gather_v2(self, operand, **arguments):
        return tensorflow_distribute.all_gather(
            operand, ordering_token=self._ordering_token.handle, **arguments
        )

    def _all_to_all_v2(self, operand, **arguments):
        return tensorflow_distribute.all_to_all(
            operand, ordering_token=self._ordering_token.handle, **arguments
        )

    def _launch(self, collective, operand, instance_key, options):
        """Makes one call, after the one before it."""
        options = self._options.merge(options)
        # Automatic control dependencies order reads and writes of a variable, also in and across
        # conds: reading `ended` waits for the call before. They would neither order the runtime's
        # broadcast nor wait for it by themselves.
        with tf.control_dependencies([self.ended.read_value()]):
            number = tf.identity(self.begun.assign_add(1))
            named = self.key.assign(instance_key, read_value=False)
        with tf.control_dependencies([number, named]):
            result = collective(
                operand,
                group_size=self._group_size,
                group_key=self._group_key,
                instance_key=instance_key,
                communication_hint=options.implementation.value,
                timeout=options.timeout_seconds,
            )
        with tf.control_dependencies([result]):
            # Not one more: an abandoned call must not make all later ones look under way.
            self.ended.assign(number)
        return result

    @contextlib.contextmanager
    def _placed(self, control_input):
        inputs = [] if control_input is None else tf.nest.flatten(control_input)
        with tf.device(self._device), tf.control_dependencies(inputs):
            yield


def _common_row_shape(shapes):
    """The shape, but for the first axis, of all replicas that have rows; `shapes` is a matrix."""
    has_rows = shapes[:, :1] > 0
    counted = tf.where(has_rows | ~tf.reduce_any(has_rows), shapes[:, 1:], 0)
    row_shape = tf.reduce_max(counted, axis=0)
    fits = tf.reduce_all(~has_rows | (counted == row_shape))
    message = (
        "all_gather: expected tensors that differ between replicas along the gathered axis alone, "
        "received these shapes (that axis first). Give `predict` and `gather` outputs of a fixed "
        "size, e.g. padded."
    )
    # All replicas see the same shapes, so either all go on or none.
    with tf.control_dependencies([tf.debugging.Assert(fits, [message, shapes], summarize=64)]):
        return tf.identity(row_shape)


def _pad_flat(tensor, size):
    flat = tf.reshape(tensor, [-1])
    return tf.pad(flat, [[0, size - tf.size(flat, out_type=tf.int64)]])
