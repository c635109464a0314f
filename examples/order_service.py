"""An order service on FastAPI: `python examples/order_service.py URL` serves it; without a URL it shows itself.

An order is appended together with the mail that confirms it, or neither is. What customers have spent is a view, made
anew from the topic at every start and kept current by following it.
"""

import asyncio
import os
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Annotated

import httpx2
import uvicorn
from fastapi import FastAPI, Header
from pydantic import BaseModel

from topics import testing
from topics.client import AsyncClient, Outgoing, Record
from topics.workers import App, Job

PORT = int(os.environ.get("PORT", "8000"))
worker = App(sys.argv[1] if len(sys.argv) > 1 else None)


@worker.worker("mails", concurrency=10)
async def send(job: Job) -> None:
    print("mail to", job.data["to"], "about an order of", job.data["total"])


class Order(BaseModel):
    customer: str
    items: list[str]
    total: Decimal


class Spent:
    """What each customer has spent, up to a seq of the topic."""

    def __init__(self) -> None:
        self.by_customer: defaultdict[str | None, Decimal] = defaultdict(Decimal)
        self._seq = 0
        self._news = asyncio.Condition()

    async def follow(self, client: AsyncClient) -> None:
        async for item in client.read("orders", self._seq, follow=True):
            if isinstance(item, Record):
                async with self._news:
                    self.by_customer[item.tag] += Decimal(item.data["total"])
                    self._seq = item.seq
                    self._news.notify_all()

    async def at(self, seq: int) -> None:
        """Wait until this order is counted: whoever placed it wants to see it."""
        async with self._news:
            await self._news.wait_for(lambda: self._seq >= seq)


@asynccontextmanager
async def following(client: AsyncClient, spent: Spent) -> AsyncIterator[None]:
    """Declare the topics, which confirms them if they exist, and keep the view current."""
    await client.create("orders", durability="fsync")
    await client.create("mails", type="queue", max_deliveries=5, dead_letter="mails.dead")
    task = asyncio.create_task(spent.follow(client))
    yield
    task.cancel()


@asynccontextmanager
async def working() -> AsyncIterator[None]:
    """Send mails; at the end, finish those that are being sent."""
    task = asyncio.create_task(worker.serve())
    yield
    worker.stop()
    await task


def service(client: AsyncClient, spent: Spent) -> FastAPI:
    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        async with following(client, spent), working():
            yield

    app = FastAPI(title="Orders", lifespan=running)

    @app.post("/orders", status_code=201)
    async def place(order: Order, idempotency_key: Annotated[str, Header()]) -> dict[str, int | bool]:
        """Both topics in one step. A client that repeats its request gets the same answer, and no second order."""
        total = str(order.total)
        record = Outgoing({"items": order.items, "total": total}, tag=order.customer)
        mail = {"to": order.customer, "total": total}
        done = await client.append_all({"orders": [record], "mails": [mail]}, idempotency_key=idempotency_key)
        return {"order": done.topics["orders"].first_seq, "repeated": bool(done.deduped)}

    @app.get("/customers/{customer}")
    async def customer(customer: str, after: int = 0) -> dict[str, str]:
        """`after` is the number of an order that the answer must include."""
        await spent.at(after)
        return {"spent": str(spent.by_customer[customer])}

    return app


async def show() -> None:
    """The same service on a server inside this process, which is how its tests are written, too."""
    with testing.engine(clock=testing.SystemClock()) as engine:
        spent = Spent()
        async with engine.async_client() as client, following(client, spent):
            transport = httpx2.ASGITransport(app=service(client, spent))
            async with httpx2.AsyncClient(transport=transport, base_url="http://orders") as http:
                for key, total in (("a", "9.90"), ("b", "5.00"), ("b", "5.00")):
                    order = {"customer": "ada", "items": ["tea"], "total": total}
                    answer = await http.post("/orders", json=order, headers={"Idempotency-Key": key})
                    print("placed:", answer.json())
                answer = await http.get("/customers/ada", params={"after": 2})
                print("ada has", answer.json())
            print("mails sent:", await testing.until_idle(worker, engine))


async def serve(url: str) -> None:
    async with AsyncClient(url) as client:
        await uvicorn.Server(uvicorn.Config(service(client, Spent()), port=PORT)).serve()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]) if len(sys.argv) > 1 else show())
