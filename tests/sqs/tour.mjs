// The SDK for Node, unmodified: run by test_node.py with the address of a server; prints what it saw as JSON.
import {
  CreateQueueCommand,
  DeleteMessageBatchCommand,
  DeleteQueueCommand,
  GetQueueAttributesCommand,
  GetQueueUrlCommand,
  ReceiveMessageCommand,
  SendMessageBatchCommand,
  SendMessageCommand,
  SQSClient,
} from "@aws-sdk/client-sqs";

const [endpoint, accessKeyId, secretAccessKey] = process.argv.slice(2);
const client = new SQSClient({ endpoint, region: "eu-west-1", credentials: { accessKeyId, secretAccessKey } });
const seen = {};

const { QueueUrl } = await client.send(new CreateQueueCommand({ QueueName: "from-node", Attributes: { DelaySeconds: "0" } }));
seen.url = QueueUrl;
await client.send(
  new SendMessageCommand({
    QueueUrl,
    MessageBody: "hällo \u{1f600}",
    MessageAttributes: { bytes: { DataType: "Binary", BinaryValue: new Uint8Array([0, 255]) } },
  }),
);
const batch = [1, 2].map((number) => ({ Id: `${number}`, MessageBody: `{"number":${number}}` }));
seen.sent = (await client.send(new SendMessageBatchCommand({ QueueUrl, Entries: batch }))).Successful.length;
const { Messages } = await client.send(
  new ReceiveMessageCommand({ QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 20, MessageAttributeNames: ["All"] }),
);
seen.bodies = Messages.map((message) => message.Body);
seen.bytes = [...Messages[0].MessageAttributes.bytes.BinaryValue];
const entries = Messages.map((message, number) => ({ Id: `${number}`, ReceiptHandle: message.ReceiptHandle }));
seen.deleted = (await client.send(new DeleteMessageBatchCommand({ QueueUrl, Entries: entries }))).Successful.length;
const { Attributes } = await client.send(new GetQueueAttributesCommand({ QueueUrl, AttributeNames: ["All"] }));
seen.left = Attributes.ApproximateNumberOfMessages;
await client.send(new DeleteQueueCommand({ QueueUrl }));
try {
  await client.send(new GetQueueUrlCommand({ QueueName: "from-node" }));
} catch (error) {
  seen.error = error.name;
  seen.status = error.$metadata.httpStatusCode;
}
const wrong = new SQSClient({ endpoint, region: "eu-west-1", credentials: { accessKeyId, secretAccessKey: "wrong" }, maxAttempts: 1 });
try {
  await wrong.send(new GetQueueUrlCommand({ QueueName: "from-node" }));
} catch (error) {
  seen.refused = error.name;
}
console.log(JSON.stringify(seen));
