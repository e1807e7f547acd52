"""
The witness: who is on which card of this node by kubelet, the runtime and the driver.

It reads and compares, and gives nothing: what was read is put together purely (`said`, `visible`,
`seen`, `confirming`), `asking` reads. Where its sources disagree it says so by name, and settles
nothing by guess.
"""
