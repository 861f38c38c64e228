"""What programs can call: prototypes of helpers and kfuncs, and who may call which in which release."""
