"""SQS on the wire: requests of AWS clients, answered by queues."""
