"""Groups of ranks with the user's certificates, and groups that may not be plain."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch._C._distributed_c10d import HashStore

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, PeerError, PeerRefused, RingleaderError
from ringleader.groups import formation
from ringleader.groups.group import Group
from ringleader.identity.certificates.pem import PemCredentials
from ringleader.identity.certificates.rotation import RotatingPem
from ringleader.identity.secret_value import Secret
from ringleader.identity.user_credentials import UserCredentials
from ringleader.testing.threaded_world import run_threads
from tests.kit.certificates import TestCa, new_key, pem_of

CA = TestCa()


def issue(*hosts: str, ca: TestCa = CA, trusts: TestCa = CA) -> UserCredentials:
    key = new_key()
    pem = PemCredentials(trusts.pem, ca.issue(key, *hosts), Secret(pem_of(key)))
    return UserCredentials(RotatingPem((), lambda: pem))


def form(
    credentials: Sequence[UserCredentials | None],
    address: str = "127.0.0.1",
    limit_s: float = 60.0,
) -> list[Group | RingleaderError]:
    """Form a group of threads; the group of each, or why there is none."""
    store = HashStore()

    def attempt(rank: int) -> Group | RingleaderError:
        options = formation.Options(
            deadline=Deadline.after(limit_s),
            transport="tcp",
            addresses=(address,),
            credentials=credentials[rank],
        )
        try:
            size = len(credentials)
            return formation.over_store(store, rank, size, "view", options)
        except RingleaderError as exc:
            return exc

    return run_threads([partial(attempt, rank) for rank in range(len(credentials))])


def test_ranks_with_certificates_of_one_authority_form_a_group() -> None:
    made = form([issue("one.lab"), issue("one.lab", "two.lab")])
    groups = [each for each in made if isinstance(each, Group)]
    assert len(groups) == 2, made
    assert [set(group.links().values()) for group in groups] == [{"tls"}, {"tls"}]
    tensors = [torch.full((1000,), float(rank + 1)) for rank in range(2)]
    run_threads(
        [partial(g.all_reduce, t) for g, t in zip(groups, tensors, strict=True)]
    )
    assert all(bool((tensor == 3.0).all()) for tensor in tensors)
    for group in groups:
        group.close()


def test_ranks_with_other_certificates_are_refused_with_the_reason() -> None:
    """At the same time, because the refusing rank waits until its deadline."""
    run_threads([come_from_another_host, come_from_another_authority])


def come_from_another_host() -> None:
    """The dialled name is right; the accepting side checks that of the dialer."""
    first, second = form([issue("one.lab", "two.lab"), issue("two.lab")], limit_s=6.0)
    assert isinstance(second, PeerRefused), second
    assert "certificate is for another host than this rank's address" in str(second)
    assert isinstance(first, PeerError), first
    assert "refused by us" in str(first)
    assert "its certificate is for two.lab, and not for 127.0.0.1" in str(first)


def come_from_another_authority() -> None:
    """Both sides say why."""
    foreign = issue("one.lab", ca=TestCa(), trusts=CA)
    first, second = form([issue("one.lab"), foreign], limit_s=6.0)
    assert "does not accept our certificate" in str(second)
    assert "its certificate is not from this cluster" in str(first)


def test_ranks_on_other_machines_are_refused_if_nothing_encrypts() -> None:
    """ZF-9: plain connections between workers without being asked for."""
    for outcome in form([None, None], address="192.0.2.1"):
        assert isinstance(outcome, ConfigError), outcome
        assert "nothing would encrypt the connection" in str(outcome)
    for group in form([None, None]):
        assert isinstance(group, Group)
        group.close()
