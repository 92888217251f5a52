// SPDX-License-Identifier: Apache-2.0

package testdevice

// softSkips has the tests that skip on the device in user space, with the
// reasons.
var softSkips = map[string]string{
	"ibverbs.TestEachEventOnce":        "takes the link of an interface down",
	"ibverbs.TestGIDChange":            "changes the addresses of an interface",
	"ibverbs.TestGIDsAgainstDevinfo":   "asks rdma-core's ibv_devinfo, which does not know the device",
	"ibverbs.TestInterfaceRemoved":     "removes an interface",
	"ibverbs.TestNextEventEnds":        "changes the addresses of an interface",
	"ibverbs.TestPortEvents":           "takes the link of an interface down",
	"ibverbs.TestRemovalTakes":         "removes a device from the kernel",
	"ibverbs.TestRemovalWaits":         "removes a device from the kernel",
	"ibverbs.TestRemovedDeviceRefuses": "lets the kernel's calls fail",
	"ibverbs.TestSysfsFallback":        "is about the kernel's files in /sys, which do not have the device",
	"ibverbs.TestToldEvents":           "plays the kernel's part towards rdma-core",

	"rdmacm.TestControlGroup":                   "the kernel's control group counts no objects of the device in user space",
	"rdmacm.TestAddressChanges":                 "makes and changes interfaces",
	"rdmacm.TestBacklogOfID":                    "sets the kernel's limit of backlogs",
	"rdmacm.TestCancelAcceptAtEachStage":        "counts the kernel's objects",
	"rdmacm.TestCancelDialAtEachStage":          "counts the kernel's objects",
	"rdmacm.TestCancelListenAtEachStage":        "counts the kernel's objects",
	"rdmacm.TestCancelWaitForRequest":           "counts the kernel's objects",
	"rdmacm.TestCloseOverLossyLink":             "needs tests/vm's second host",
	"rdmacm.TestDeviceIsRemoved":                "removes a device from the kernel",
	"rdmacm.TestDialDatagramWithoutAnswer":      "makes the kernel believe that a host is there",
	"rdmacm.TestDialUnreachable":                "makes the kernel believe that a host is there",
	"rdmacm.TestGIDInContainer":                 "makes and changes interfaces",
	"rdmacm.TestEventAddrError":                 "counts the kernel's objects",
	"rdmacm.TestEventUnreachable":               "makes the kernel believe that a host is there",
	"rdmacm.TestExample":                        "connects to the guest's address",
	"rdmacm.TestFloodedListener":                "counts the kernel's objects",
	"rdmacm.TestGetAddrInfoIB":                  "uses addresses of the family AF_IB, which the device does not have",
	"rdmacm.TestGroupByRoute":                   "changes routes",
	"rdmacm.TestHandledDeviceIsRemoved":         "removes a device from the kernel",
	"rdmacm.TestIdleEndsNoticeThatPeerVanished": "needs tests/vm's second host",
	"rdmacm.TestKeepAliveOfCPeer":               "runs rdma-core's rping, which does not have the device",
	"rdmacm.TestLingerIsBounded":                "counts the kernel's objects",
	"rdmacm.TestListenAtLoopbackFails":          "is about the kernel's view of loopback addresses, which the device has",
	"rdmacm.TestLoss":                           "needs tests/vm's second host",
	"rdmacm.TestMigratedEvents":                 "asks the kernel for the state of an id",
	"rdmacm.TestRemovedDeviceHasPD":             "removes a device from the kernel",
	"rdmacm.TestRemovedDeviceIsIdle":            "removes a device from the kernel",
	"rdmacm.TestSendToManyAbsentPeers":          "waits as long as the kernel does for hosts that are not there",
	"rdmacm.TestSendToNobody":                   "waits as long as the kernel does for hosts that are not there",
	"rdmacm.TestSoak":                           "counts the kernel's objects",
	"rdmacm.TestSoakWithLoss":                   "needs tests/vm's second host",
	"rdmacm.TestTransferToVanishedPeer":         "needs tests/vm's second host",

	"rdmacm/endpoint.TestEndpointIBAddresses":        "uses addresses of the family AF_IB, which the device does not have",
	"rdmacm/endpoint.TestExample":                    "connects to the guest's address",
	"rdmacm/endpoint.TestResolveAddrInfoUnsupported": "is about libraries that lack what the device has",
	"rdmacm/endpoint.TestXRCWithoutDevice":           "lets the kernel listen for extended reliable connections, which the device has none of",

	"rdmacm.TestIBAddresses": "uses addresses of the family AF_IB, which the device does not have",

	"rsocket.TestCEcho":          "has a peer of rdma-core's, which does not have the device",
	"rsocket.TestCKilled":        "has a peer of rdma-core's, which does not have the device",
	"rsocket.TestCKilledAnytime": "has a peer of rdma-core's, which does not have the device",
	"rsocket.TestCShutdown":      "has a peer of rdma-core's, which does not have the device",
	"rsocket.TestHostVanishes":   "needs tests/vm's second host",
	"rsocket.TestLoss":           "needs tests/vm's second host",

	"transfer.TestSecondDeviceRemoved": "makes and removes a device of the kernel's",
}
