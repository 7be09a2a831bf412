# SPDX-License-Identifier: Apache-2.0
"""Products of Dask arrays by chunks, on a cluster of processes and three daemons."""

import pathlib

import dask
import dask.array as da
import gemmd
import gemmd.dask
import ml_dtypes
import numpy as np
import pytest
from distributed import Client as DaskClient
from distributed import LocalCluster


def integers(numbers, *shape, dtype=np.float32):
    return numbers.integers(-4, 4, shape, endpoint=True).astype(dtype)


@pytest.fixture(scope="module")
def three(gemmd, tmp_path_factory):
    from fixtures import Daemons

    daemons = Daemons(gemmd, tmp_path_factory.mktemp)
    yield [daemons.start("--devices=cpu", "--lame-duck=1ms") for _ in range(3)]
    daemons.end()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two worker processes that can import this package."""
    package = str(pathlib.Path(gemmd.__file__).parents[1])
    with (
        dask.config.set({"distributed.nanny.pre-spawn-environ": {"PYTHONPATH": package}}),
        LocalCluster(
            n_workers=2,
            threads_per_worker=2,
            dashboard_address=None,
            local_directory=str(tmp_path_factory.mktemp("dask")),
        ) as cluster,
        DaskClient(cluster) as client,
    ):
        yield client


def products_of(daemon):
    with gemmd.Client(daemon.tcp) as client:
        (device,) = client.statistics().devices
        return sum(end.count for end in device.ends if end.name == "OK")


def test_a_cluster_and_three_daemons(cluster, three, numbers):
    a, b = integers(numbers, 120, 90), integers(numbers, 90, 70)
    before = [products_of(daemon) for daemon in three]
    d = gemmd.dask.matmul(
        da.from_array(a, (25, 40)), da.from_array(b, (40, 20)), [each.tcp for each in three]
    )
    assert (d.shape, d.dtype, d.chunks[0]) == ((120, 70), np.float32, (25, 25, 25, 25, 20))
    assert np.array_equal(d.compute(), a @ b)
    counts = [products_of(daemon) - old for daemon, old in zip(three, before, strict=True)]
    assert sum(counts) == 5 * 4 * 3
    assert min(counts) > 0


def test_a_daemon_that_ends(cluster, three, daemons, numbers):
    ended = daemons.start("--devices=cpu", "--lame-duck=1ms")
    ended.stop()
    a = integers(numbers, 60, 60)
    blocks = da.from_array(a, 20)
    addresses = [three[0].tcp, ended.tcp, three[2].tcp]
    options = gemmd.ClientOptions(max_attempts=1)
    d = gemmd.dask.matmul(blocks, blocks, addresses, client_options=options)
    assert np.array_equal(d.compute(), a @ a)
    gone = gemmd.dask.matmul(blocks, blocks, addresses[1:2], client_options=options)
    with pytest.raises(gemmd.Unavailable):
        gone.compute()


def test_types_and_options(three, numbers):
    addresses = [three[0].tcp]
    a, b = integers(numbers, 12, 9), integers(numbers, 9, 8)
    with dask.config.set(scheduler="threads"):
        for dtype, result in (
            (np.float64, np.float64),
            (ml_dtypes.bfloat16, np.float32),
            (np.int8, np.int32),
        ):
            blocks = da.from_array(a.astype(dtype), 4), da.from_array(b.astype(dtype), (4, 8))
            d = gemmd.dask.matmul(*blocks, addresses).compute()
            assert d.dtype == result
            assert np.array_equal(d, a @ b)
        mixed = da.from_array(a.astype(np.int8), 4), da.from_array(b.astype(np.float16), (4, 8))
        for first, second in (mixed, (mixed[1].T, mixed[0].T)):
            d = gemmd.dask.matmul(first, second, addresses)
            assert d.dtype == d.compute().dtype == np.float32
            assert np.array_equal(d, first.compute().astype(float) @ second.compute().astype(float))
        blocks = da.from_array(a, 4), da.from_array(b, 4)
        d = gemmd.dask.matmul(*blocks, addresses, alpha=2, activation="relu", out_type="bf16")
        assert d.dtype == ml_dtypes.bfloat16
        assert np.array_equal(d.compute().astype(np.float32), np.maximum(2 * (a @ b), 0))


@pytest.mark.parametrize("options", [{}, {"alpha": 0.5, "out_type": "f32"}, {"activation": "relu", "out_type": "f64"}])
def test_integers_are_those_of_one_product(three, numbers, options):
    """Sums of chunks exceed 2^31, and wrap as the whole does."""
    a = numbers.integers(100, 128, (3, 280_000)).astype(np.int8)
    b = numbers.integers(100, 128, (280_000, 2)).astype(np.int8)
    b[140_000:, 0] = -b[:140_000, 0]
    a[:, 140_000:] = a[:, :140_000]
    addresses = [three[0].tcp]
    with gemmd.Client(addresses[0]) as client, dask.config.set(scheduler="threads"):
        whole = client.matmul(a, b, **options)
        assert (whole[:, 0] == 0).all()
        blocks = da.from_array(a, (3, 70_000)), da.from_array(b, (70_000, 2))
        d = gemmd.dask.matmul(*blocks, addresses, **options).compute()
    assert d.dtype == whole.dtype
    assert np.array_equal(d, whole)


@pytest.mark.parametrize("dtype, widths", [(np.int8, (4, 5)), (np.float32, (4, 0, 5)), (np.int8, (4, 0, 5))])
def test_no_checksum_without_sums(three, numbers, dtype, widths):
    """The last step of a sum of integers, and chunks of width 0, have no elements along k, so the
    server refuses a checksum."""
    a, b = integers(numbers, 6, 9, dtype=dtype), integers(numbers, 9, 3, dtype=dtype)
    blocks = da.from_array(a, (6, widths)), da.from_array(b, (widths, 3))
    with dask.config.set(scheduler="threads"):
        d = gemmd.dask.matmul(*blocks, [three[0].tcp], verify="checksum", alpha=2)
        assert np.array_equal(d.compute(), 2 * (a.astype(np.float32) @ b.astype(np.float32)))


def test_client_options_of_lists(three, numbers):
    a = integers(numbers, 4, 4)
    options = gemmd.ClientOptions(metadata=[("a", "1")], channel_options=[["grpc.primary_user_agent", "dask"]])
    with dask.config.set(scheduler="threads"):
        d = gemmd.dask.matmul(da.from_array(a), da.from_array(a), [three[0].tcp], client_options=options)
        assert np.array_equal(d.compute(), a @ a)


@pytest.mark.parametrize(
    "shape, addresses, options, field",
    [
        ((4, 4), [], {}, "addresses"),
        ((4, 4), "host:1", {}, "addresses"),
        ((4, 4), ["host:1", "host"], {}, "address"),
        ((4, 4), ["host:1", 1], {}, "address"),
        ((4, 4), ["host:1"], {"bias": np.zeros(4)}, "options"),
        ((4, 4, 4), ["host:1"], {}, "a and b"),
    ],
)
def test_what_is_refused(shape, addresses, options, field):
    array = da.zeros(shape)
    with pytest.raises(gemmd.InvalidArgument) as raised:
        gemmd.dask.matmul(array, array, addresses, **options)
    assert raised.value.field == field
