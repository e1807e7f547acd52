"""
The device plugin: kubelet is answered with names, and the runtime told what they mean.

May not choose a device: who holds what is told by the ledger, whose container it is by kubelet.
"""
