//! The *actors* driver: the real actix actors of driver, host manager, registry, agents and State over a
//! simulated transport, on a paused clock. Same plan, oracle and words of the trace as `cores`.
