import shutil
from tests.bucket.test_lost_machine import *
import pytest
@pytest.mark.parametrize("n", range(14))
def test_rep(tmp_path, bucket, n):
    data = tmp_path / "data"
    with serving(data, **settings(bucket, checkpoint_ms=100)) as server:
        client = server.client()
        client.put("/v0/topics/copied", {})
        client.put("/v0/routers/r", {"source": "log", "dest": "copied"})
        for number in range(50):
            assert client.append("log", *[{"n": number, "i": i} for i in range(20)]).status == 200
        import time
        while client.get("/v0/health").json["bucket"]["lag_bytes"] > 3000: time.sleep(0.001)
    shutil.rmtree(data)
    with serving(data, **settings(bucket)) as server:
        client = server.client()
        pages=[]
        cursor=0
        while True:
            p=client.diff("copied", from_seq=cursor, limit=1000)
            pages.append((cursor, len(p["records"]), p["records"][:1] and (p["records"][0]["$seq"],p["records"][-1]["$seq"]), p["tombstone"], p["caught_up"], p["next_from_seq"]))
            cursor=p["next_from_seq"]
            if p["caught_up"]: break
        if len(pages)>2 or sum(x[1] for x in pages)>0 and len(pages[0][2]) and pages[-1][1]:
            for x in pages[-4:]: print(x)
            print(client.state("copied")["head_seq"], client.state("log")["head_seq"])
