"""A vLLM server of another environment, its requests, counters and processor time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil

from arr_coc.hub import bundled_model_path
from benchmarks.support.answer_servers import free_port

READY_S = 900.0
REQUEST_S = 300.0
STOP_S = 30.0
NAME = "bundled"
CACHES = ("prefix", "mm", "encoder")
BLOCK_TOKENS = 32

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # routes that empty its caches
}


class VllmServer:
    """A server of the bundled model on one thread of a CPU, with the plugin `arr-coc-vllm`.

    `command`: vLLM's command, as `.../bin/vllm`. Its output goes into `log`.
    """

    def __init__(self, command: Path, dtype: str, log: Path) -> None:
        self.port = free_port()
        options = {
            "--served-model-name": NAME,
            "--dtype": dtype,
            "--max-model-len": "4096",
            "--max-num-seqs": "8",
            "--block-size": str(BLOCK_TOKENS),
            "--limit-mm-per-prompt": json.dumps({"image": 10, "video": 0}),
            "--host": "127.0.0.1",
            "--port": str(self.port),
        }
        arguments = [part for option in options.items() for part in option]
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [command, "serve", str(bundled_model_path()), *arguments, "--enforce-eager"],
                env={**os.environ, **ENVIRONMENT},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> VllmServer:
        deadline_s = time.monotonic() + READY_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.__exit__()
                raise RuntimeError("the vLLM server did not start; its log says why")
            time.sleep(1)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _answers(self) -> bool:
        try:
            return self.request("GET", "/health")[0] == 200
        except OSError:
            return False

    @property
    def time_s(self) -> float:
        """Processor time of all its processes."""
        main_process = psutil.Process(self._process.pid)
        return float(
            sum(sum(process.cpu_times()[:2]) for process in (main_process, *main_process.children(recursive=True)))
        )

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
        """Return the status and the text of a reply."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_S)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            return reply.status, reply.read().decode()
        finally:
            connection.close()

    def chat(self, content: Sequence[dict[str, Any]], **options: Any) -> tuple[int, str]:
        """Return the status, and the greedy answer or the message of an error."""
        messages = [{"role": "user", "content": list(content)}]
        body = {"model": NAME, "messages": messages, "temperature": 0, "max_tokens": 64, **options}
        status, text = self.request("POST", "/v1/chat/completions", body)
        if status != 200:
            return status, str(json.loads(text)["error"]["message"])
        return status, str(json.loads(text)["choices"][0]["message"]["content"])

    def chat_at_once(self, clients: Sequence[Sequence[Sequence[dict[str, Any]]]], **options: Any) -> list[list[str]]:
        """Return the answers of clients, each of which asks one request after the other."""

        def ask(requests: Sequence[Sequence[dict[str, Any]]]) -> list[str]:
            return [self.chat(content, **options)[1] for content in requests]

        with ThreadPoolExecutor(len(clients)) as threads:
            return list(threads.map(ask, clients))

    def prompt_tokens(self) -> tuple[int, int]:
        """Return vLLM's counters of prompt tokens: all, and those of cached blocks."""
        text = self.request("GET", "/metrics")[1]
        counts = [
            sum(float(value) for value in re.findall(rf"^vllm:{name}_total{{.*}} (\S+)$", text, re.MULTILINE))
            for name in ("prefix_cache_queries", "prefix_cache_hits")
        ]
        return int(counts[0]), int(counts[1])

    def empty_caches(self) -> None:
        """Empty the caches of prompts, pictures and embeddings."""
        for name in CACHES:
            status, text = self.request("POST", f"/reset_{name}_cache")
            if status != 200:
                raise RuntimeError(f"the vLLM server does not empty its cache: {text}")
