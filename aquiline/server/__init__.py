"""The OpenAI-compatible HTTP server.

    app -> routes -> protocol (what a body may say)
                  -> prompts, sampling (what the engine is asked)
                  -> engine_client (the only module that knows where the engine runs)
                  -> answers (what a client reads), sse (how it is streamed)

A request is checked completely before the engine sees it. An answer is built by one piece of code whether it is
streamed or not: the whole answer is the sum of its deltas.
"""
