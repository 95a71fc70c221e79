import sys
import time

import torch

from afaf.engine.graphed import *
from afaf.learning.feed import Feed
from afaf.learning.learner import Learner
from afaf.methods.base import Lesson
from afaf.network.net import Network
from afaf.runs.runner import set_up
from afaf.streams.benchmarks import open_stream

prec = sys.argv[1]
epochs = 3
stream = open_stream("split-cifar10")
s = set_up(stream.outline, "afaf", {"learn": {"epochs": epochs}})
L = Learner.fresh(Network(s.spec, 0, "cuda"))
E = GraphedEngine(prec)


def sync():
    torch.cuda.synchronize()
    return time.perf_counter()


for task in stream:
    t0 = sync()
    feed = Feed([(task.train, task.preparation)], "cuda")
    les = Lesson(task.number, task.classes, feed)
    L.begin(task.number, task.classes)
    s.method.start(L, les, 0)
    t1 = sync()
    plan = s.method.plan(L, les, 0)
    rw = plan.rewire
    acc = [0.0]

    def timed(l, e):
        a = sync()
        rw(l, e)
        acc[0] += sync() - a

    plan.rewire = timed
    marks = []
    E.learn(L, plan, feed, lambda r: marks.append(sync()))
    t2 = sync()
    s.method.finish(L, les)
    L.end(task.number)
    t3 = sync()
    print(
        prec,
        "task",
        task.number,
        "start",
        round(t1 - t0, 3),
        "learn",
        round(t2 - t1, 3),
        "epochs",
        [round(b - a, 3) for a, b in zip([t1] + marks, marks)],
        "rewire each",
        round(acc[0] / 2, 4),
        "finish",
        round(t3 - t2, 4),
        flush=True,
    )
    if task.number in (1, 3):
        with precision(prec, L.network.device):
            work, kept = gather(L, plan)
            st = Stage(work, kept, feed, CHUNK_BYTES, prec)
            print({l: len(k) for l, k in kept.items()})
            m = Moment(0, task.number, 0, 7)
            a = sync()
            st._lay_out(feed.order(m)[:4096], m)
            b = sync()
            print("lay out 4096", round(b - a, 4))
            st._replay(64)
            a = sync()
            for _ in range(50):
                st.cursor.zero_()
                st.step_number.zero_()
                st._replay(64)
            b = sync()
            print("us/step", round((b - a) / 50 * 1e6, 1))
            from torch.profiler import ProfilerActivity, profile

            with profile(activities=[ProfilerActivity.CUDA]) as p:
                for _ in range(10):
                    st.cursor.zero_()
                    st._replay(64)
                torch.cuda.synchronize()
            print(p.key_averages().table(sort_by="cuda_time_total", row_limit=28, max_name_column_width=70))
