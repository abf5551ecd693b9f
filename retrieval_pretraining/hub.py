"""A repository of the Hub: whether we may write to it is found out before any work, and a push is one commit or none.

A push that failed at the end of a run can be made up for, from the folder that the run left:

    python -m retrieval_pretraining.hub outputs/mine --hub_model_id me/mine
    python -m retrieval_pretraining.hub outputs/pairs --hub_dataset_id me/pairs

The client is `huggingface_hub`: HF_ENDPOINT, HF_TOKEN and `hf auth login` mean what they mean there. Its
`upload_folder` is not used, for it cuts a folder into several commits, the first of which cannot be loaded.
"""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, constants, get_token
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from .door import exit_status
from .errors import InputError, PushError
from .hub_files import Files, model_files, pair_files, superseded

T = TypeVar("T")

# Seconds before each further attempt; the client has waited besides where it tries again by itself.
WAITS = (1, 2, 4, 8)
_TRANSIENT = (408, 429, 500, 502, 503, 504)
_SCANNED_BYTES = 1_000_000  # larger files are weights and text, which no token gets into


@dataclass
class HubRepository:
    """A repository that `open_repository` found to be writable.

    `revision` None is the main branch. With `create_pr` the first push opens a pull request; the later ones go to it.
    """

    name: str
    kind: str = "model"  # or "dataset"
    revision: str | None = None
    create_pr: bool = False
    token: str | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"{constants.ENDPOINT}/{'datasets/' if self.kind == 'dataset' else ''}{self.name}"

    def push(self, files: Files, message: str) -> CommitInfo:
        """Makes one commit of the files: all of them or none. Files that are there already are not sent again.

        Raises `PushError` where the Hub refuses, or where it still fails after several attempts.
        """
        self._refuse_token(files)
        api, where = HfApi(), {"repo_id": self.name, "repo_type": self.kind, "token": self.token}
        listed = _ask(lambda: api.list_repo_files(revision=self.revision, **where), self)
        outdated = superseded(listed, files)

        def commit() -> CommitInfo:
            # Anew for each attempt: the client marks what it has sent.
            additions = [
                CommitOperationAdd(name, content if isinstance(content, bytes) else str(content))
                for name, content in files.items()
            ]
            return api.create_commit(
                operations=[*additions, *(CommitOperationDelete(name) for name in outdated)],
                commit_message=message,
                revision=self.revision,
                create_pr=self.create_pr,
                **where,
            )

        # A commit whose answer was lost is found by the next attempt, which then has nothing to do. A pull request
        # would be opened twice.
        made = _ask(commit, self, again_when_cut=not self.create_pr)
        if self.create_pr and made.pr_revision is not None:
            self.revision, self.create_pr = made.pr_revision, False
        return made

    def retry_command(self, folder: str | Path) -> str:
        """What pushes the folder, typed by hand. The token is not in it."""
        words = ["python", "-m", "retrieval_pretraining.hub", str(folder), f"--hub_{self.kind}_id", self.name]
        if self.revision is not None:
            words += ["--hub_revision", self.revision]
        if self.create_pr:
            words += ["--hub_create_pr", "True"]
        return shlex.join(words)

    def _refuse_token(self, files: Files):
        token = (self.token or get_token() or "").encode()
        for name, content in files.items():
            if len(token) < 8 or (isinstance(content, Path) and content.stat().st_size > _SCANNED_BYTES):
                continue
            if token in (content if isinstance(content, bytes) else content.read_bytes()):
                raise PushError(f"{self.name} was not pushed: {name} holds the access token; remove it from the file.")


def open_repository(
    name: str,
    *,
    kind: str = "model",
    token: str | None = None,
    private: bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    create: bool = True,
) -> HubRepository:
    """The repository, made if it does not exist, as is the branch `revision`; `create` False looks only.

    Raises `InputError`, which says what to do, for a name that is none, a token that is missing, wrong or may not
    write there, and for a Hub that cannot be reached.
    """
    option = f"--hub_{kind}_id"
    _check_name(name, option, revision, create_pr)
    if constants.HF_HUB_OFFLINE:
        raise InputError("--push_to_hub needs the Hub, but HF_HUB_OFFLINE is set: unset it, or push later.")
    if token is None and get_token() is None:
        raise InputError("--push_to_hub needs an access token: log in (hf auth login), or set HF_TOKEN.")
    api = HfApi()
    repository = HubRepository(name, kind, revision, create_pr, token)
    try:
        user = _ask(lambda: api.whoami(token=token), repository)
        if "/" not in name:
            repository.name = f"{user['name']}/{name}"
        ours = _check_rights(user, repository, option)
        if create:
            _create(api, repository, private, option, ours=ours)
    except PushError as error:
        raise InputError(f"{option} {name}: {error}") from error
    return repository


def _check_name(name: str, option: str, revision: str | None, create_pr: bool):
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise InputError(
            f"{option} {name} is no name on the Hub: use letters, digits, '-', '_' and '.', as in me/my-model."
        ) from error
    if create_pr and revision is not None:
        raise InputError("--hub_create_pr opens a branch of its own: leave out --hub_revision.")
    if revision is not None and (re.fullmatch("[0-9a-f]{40}", revision) or not re.fullmatch(r"[\w./-]+", revision)):
        raise InputError(f"--hub_revision {revision} is no branch: give the name of one, such as dev.")


def _check_rights(user: dict[str, Any], repository: HubRepository, option: str) -> bool:
    """What the token says of itself; what it does not say, the Hub says when the repository is made. Returns whether
    the user is at home there."""
    namespace = repository.name.split("/")[0]
    access = (user.get("auth") or {}).get("accessToken") or {}
    if access.get("role") == "read":
        raise InputError(
            "The access token can only read: make one that can write (huggingface.co/settings/tokens), then log in "
            "with it (hf auth login)."
        )
    roles = {org.get("name"): org.get("roleInOrg") for org in user.get("orgs") or []}
    ours = namespace == user["name"] or namespace in roles
    if repository.create_pr:
        return ours  # anybody may propose
    if not ours:
        raise InputError(
            f"{option} {repository.name}: {user['name']} is no member of {namespace}; give {user['name']}/"
            f"{repository.name.split('/')[1]}, or propose the change with --hub_create_pr True."
        )
    if roles.get(namespace) == "read":
        raise InputError(
            f"{option} {repository.name}: {user['name']} can only read in {namespace}; ask for the right to write."
        )
    if access.get("role") == "fineGrained" and not _covers(access.get("fineGrained") or {}, repository):
        raise InputError(
            f"{option} {repository.name}: the fine-grained access token has no right to write there; give it "
            f"'write access to contents' of {namespace} (huggingface.co/settings/tokens)."
        )
    return ours


def _covers(rights: dict[str, Any], repository: HubRepository) -> bool:
    scopes = rights.get("scoped")
    if scopes is None:
        return True  # not known
    names = (repository.name.split("/")[0], repository.name)
    return any(
        (scope.get("entity") or {}).get("name") in names and "repo.write" in (scope.get("permissions") or [])
        for scope in scopes
    )


def _create(api: HfApi, repository: HubRepository, private: bool | None, option: str, *, ours: bool):
    where = {"repo_id": repository.name, "repo_type": repository.kind, "token": repository.token}
    if ours:
        _ask(lambda: api.create_repo(private=private, exist_ok=True, **where), repository)
    # It may have been there, and of another kind than asked for.
    there = _ask(lambda: api.repo_info(**where), repository)
    if private and not there.private:
        raise InputError(
            f"--hub_private_repo: {repository.name} exists and is public; make it private on its page, or give "
            f"another {option}."
        )
    branch = repository.revision
    if branch is not None and branch != "main" and not branch.startswith("refs/"):
        _ask(lambda: api.create_branch(branch=branch, exist_ok=True, **where), repository)


# --- Requests -----------------------------------------------------------------------------------------------------


def _ask(request: Callable[[], T], repository: HubRepository, *, again_when_cut: bool = True) -> T:
    """The answer to a request, which is made again where that may help; else `PushError`."""
    for wait in (*WAITS, None):
        try:
            return request()
        except (InputError, PushError):
            raise
        except Exception as error:  # what the client raises differs between its versions
            status, retry_after = _answered(error)
            again = status in _TRANSIENT or (again_when_cut and _was_cut(error))
            if wait is None or not again:
                raise PushError(_reason(error, status, repository)) from error
            time.sleep(max(wait, retry_after))
    raise AssertionError


def _causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _answered(error: Exception) -> tuple[int | None, float]:
    """The status of the Hub's answer, None if there was none, and the seconds that it asks to wait."""
    for cause in _causes(error):
        response = getattr(cause, "response", None)
        if response is not None:
            seconds = response.headers.get("Retry-After", "")
            return response.status_code, float(seconds) if re.fullmatch(r"\d{1,3}", seconds) else 0.0
    return None, 0.0


def _was_cut(error: Exception) -> bool:
    """Whether the network, or what stands before the Hub, failed rather than the request."""
    names = {kind.__name__ for cause in _causes(error) for kind in type(cause).__mro__}
    return not names.isdisjoint({"TransportError", "ConnectionError", "TimeoutError", "JSONDecodeError"})


def _reason(error: Exception, status: int | None, repository: HubRepository) -> str:
    if status is None:
        if _was_cut(error):
            return f"the Hub ({constants.ENDPOINT}) cannot be reached ({type(_causes(error)[-1]).__name__})"
        return _first_line(error)
    said = next((cause.server_message for cause in _causes(error) if getattr(cause, "server_message", None)), None)
    said = f" ({' '.join(said.split())[:300]})" if said else ""
    if status == 401:
        return f"the Hub does not accept the access token{said}; log in anew (hf auth login)"
    if status == 403:
        return f"the access token may not write to {repository.name}{said}; use one that may"
    if status == 404:
        return f"the Hub has no {repository.kind} {repository.name} that this access token may see{said}"
    return f"the Hub answered {status}{said}; try again later"


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__


# --- By hand ------------------------------------------------------------------------------------------------------


@dataclass
class HubArguments:
    """Where a folder goes."""

    hub_model_id: str | None = field(default=None, metadata={"help": "The model on the Hub, such as me/my-model."})
    hub_dataset_id: str | None = field(default=None, metadata={"help": "The dataset on the Hub, for mined pairs."})
    hub_revision: str | None = field(default=None, metadata={"help": "Branch; made if it does not exist."})
    hub_create_pr: bool = field(default=False, metadata={"help": "Open a pull request."})
    hub_private_repo: bool | None = field(default=None, metadata={"help": "Make a new repository private."})
    hub_token: str | None = field(default=None, metadata={"help": "Access token; better: `hf auth login`."})
    commit_message: str = field(default="Upload", metadata={"help": "The title of the commit."})


def push_folder(folder: str | Path, arguments: HubArguments) -> CommitInfo:
    """Pushes the folder of a model, or of mined pairs."""
    model, dataset = arguments.hub_model_id, arguments.hub_dataset_id
    if (model is None) == (dataset is None):
        raise InputError("Give either --hub_model_id or --hub_dataset_id.")
    if not Path(folder).is_dir():
        raise InputError(f"There is no folder {folder}.")
    files = model_files(folder) if dataset is None else pair_files(folder)
    repository = open_repository(
        model if dataset is None else dataset,
        kind="model" if dataset is None else "dataset",
        token=arguments.hub_token,
        private=arguments.hub_private_repo,
        revision=arguments.hub_revision,
        create_pr=arguments.hub_create_pr,
    )
    try:
        return repository.push(files, arguments.commit_message)
    except PushError as error:
        raise PushError(str(error), repository.retry_command(folder)) from error


def main(arguments: list[str] | None = None) -> int:
    """The command line: returns the exit status."""
    from .arguments import parse_arguments

    def run():
        folder, *flags = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
        if folder.startswith("-"):
            parse_arguments([HubArguments], [folder, *flags])
            raise InputError("Give the folder first, before every option.")
        info = push_folder(folder, *parse_arguments([HubArguments], flags))
        print(f"pushed: {info.pr_url or info.commit_url}")

    return exit_status(run)


if __name__ == "__main__":
    sys.exit(main())
