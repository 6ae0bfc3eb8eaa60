"""Talk to a running server with the official client: `octavo serve smollm2`, then this file."""

from __future__ import annotations

import argparse
import time

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1", help="base URL of the server")
    parser.add_argument("--key", default="none", help="the key, where the server asks for one")
    parser.add_argument("--ask", default="Give me three tips for sleeping well.", help="what to ask")
    args = parser.parse_args()
    client = OpenAI(base_url=args.url, api_key=args.key)
    model = client.models.list().data[0].id
    begin = time.perf_counter()
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": args.ask}],
        max_tokens=200,
        stream=True,
        stream_options={"include_usage": True},
    )
    for event in stream:
        for choice in event.choices:
            print(choice.delta.content or "", end="", flush=True)
        if event.usage is not None:
            seconds = time.perf_counter() - begin
            print(f"\n\n{model}: {event.usage.completion_tokens} tokens in {seconds:.2f} s")


if __name__ == "__main__":
    main()
