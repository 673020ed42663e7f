//! A many-producer one-consumer ring in mapped memory, and its recovery.
