"""Tests of tokenizers from the Hugging Face Hub, fetched from a server that answers as the Hub does."""

import hashlib
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

CODE = """
import sys
from dgym.errors import ModelConfigError
from dgym.llm._config import hub_token
from dgym.llm._limits import load_tokenizer
try:
    print(load_tokenizer("somebody/words", hub_token())("one two three"))
except ModelConfigError as error:
    print(error)
"""


@pytest.fixture
def tokenizer_json(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer.to_str().encode()


@pytest.fixture
def hub(tokenizer_json):
    """The server, which returns its only tokenizer to requests with the right token."""

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self):
            if self.headers.get("Authorization") != "Bearer hf_abcdefgh":
                self._answer(401, b'{"error": "Invalid credentials"}', {"X-Error-Code": "GatedRepo"})
            elif self.path == "/somebody/words/resolve/main/tokenizer.json":
                etag = hashlib.sha256(tokenizer_json).hexdigest()
                self._answer(200, tokenizer_json, {"ETag": f'"{etag}"', "X-Repo-Commit": "a" * 40})
            else:
                self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})

        do_GET = do_HEAD  # noqa: N815 - the base class defines the name

        def _answer(self, status, body, headers):
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(90)


def count(hub, home, token):
    # The package reads its variables at import, so it needs a new process.
    environment = {
        "HF_ENDPOINT": hub,
        "HF_HOME": str(home),
        "HF_TOKEN": token,
        "HF_HUB_DISABLE_XET": "1",
        "HOME": str(home),
    }
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, timeout=100, check=True
    )
    return done.stdout.strip()


def test_a_tokenizer_is_fetched_by_name_with_the_token_and_kept(hub, tmp_path):
    assert count(hub, tmp_path, "hf_abcdefgh") == "3"
    nobody = "http://127.0.0.1:1"
    assert count(nobody, tmp_path, "hf_abcdefgh") == "3", "taken from the cache"


def test_a_missing_tokenizer_is_reported_with_a_remedy(hub, tmp_path):
    output = count(hub, tmp_path, "hf_zyxwvuts")
    assert output.startswith("the tokenizer 'somebody/words' cannot be loaded: ")
    assert "check the name, HF_TOKEN" in output
    assert "hf_zyxwvuts" not in output


def test_the_tokenizers_json_is_what_the_package_writes(tokenizer_json):
    assert json.loads(tokenizer_json)["model"]["type"] == "WordLevel"
