"""A whole tour of the embedded database: `python examples/embedded.py [directory]`."""

import sys
import tempfile
import threading

import topics


def main(path: str) -> None:
    with topics.open(path) as db:
        # A topic comes into being with its first record; configure it when the defaults do not fit.
        db.configure("orders", durability="fsync", cap_records=1_000_000)

        # A tail sees what others append, in order, from the moment it was opened.
        seen: list[int] = []
        tail = db.tail("orders", from_seq=0, idle_s=1.0)
        reader = threading.Thread(target=lambda: seen.extend(r.seq for r in tail if isinstance(r, topics.Record)))
        reader.start()

        # One record, a batch, and a retry that does not double it.
        db.append("orders", {"id": 1, "total": "12.50"}, tag="customer-7")
        db.append_many("orders", [{"id": 2}, topics.Outgoing({"id": 3}, tag="customer-7")], idempotency_key="batch-1")
        again = db.append_many("orders", [{"id": 2}, {"id": 3}], idempotency_key="batch-1")
        print("retried:", again.deduped, "seqs", again.first_seq, "to", again.last_seq)

        # Read behind a cursor; keep `next_from_seq` to go on later.
        page = db.diff("orders", from_seq=0, include_tags=True)
        for record in page.records:
            print(record.seq, record.tag, record.data)

        # Forget a customer: gone at once, for every reader, also from what is long on disk.
        print("deleted:", db.delete("orders", match="customer-7"))
        print("left:", db.state("orders").count)

        reader.join()
        print("the tail saw", seen)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(directory)
