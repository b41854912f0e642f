"""NodeCredentials: those of the cluster, or those of the user."""

from __future__ import annotations

from ringleader.identity.credentials import Credentials
from ringleader.identity.user_credentials import UserCredentials

NodeCredentials = Credentials | UserCredentials
