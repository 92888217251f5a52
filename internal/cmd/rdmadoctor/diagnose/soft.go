// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/verbena-go/verbena/ibverbs"
)

// variable is the environment variable that chooses the device in user space, with the value soft.
const variable = "VERBENA_DEVICE"

// softChecks are those of the device in user space, which needs nothing of the kernel's.
var softChecks = []check{
	{name: "device", lack: "no device", look: softDevice},
	{name: "connection", needs: []string{"device"}, look: softConnection},
}

func softDevice(context.Context, *machine) Finding {
	devices, err := ibverbs.Devices()
	if err == nil && len(devices) == 0 {
		err = ibverbs.ErrNoDevice
	}
	if err != nil {
		return Finding{Status: Fail, Found: err.Error()}
	}
	return Finding{
		Status: OK, Found: variable + "=soft: " + devices[0].Name + ", a device in user space that is part of this program (package softroce): " +
			"it needs no card, driver or C library, and reaches programs of this machine that use it, too",
		Remedy: "unset " + variable + " to check the machine's own devices",
	}
}

func softConnection(ctx context.Context, _ *machine) Finding {
	addr := netip.AddrFrom4([4]byte{127, 0, 0, 1}).String()
	if err := connect(ctx, addr); err != nil {
		return Finding{Status: Fail, Found: fmt.Sprintf("to itself at %s: %v", addr, err), Remedy: whyNot(err)}
	}
	return Finding{Status: OK, Found: fmt.Sprintf("to itself at %s: a message and an RDMA write arrived", addr)}
}

// softPeer is the check of a peer with the device in user space.
func softPeer(context.Context, *machine) Finding {
	return Finding{Status: Skipped, Found: "not checked: the device in user space reaches programs of this machine only"}
}
