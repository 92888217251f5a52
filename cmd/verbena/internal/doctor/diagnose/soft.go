// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/verbena-go/verbena/ibverbs"
)

// variable is the environment variable that selects the device in user space,
// if its value begins with soft.
const variable = "VERBENA_DEVICE"

// softChecks lists the checks of the device in user space, which does not need
// the kernel's RDMA.
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
		Status: OK, Found: variable + "=" + os.Getenv(variable) + ": " + devices[0].Name + ", a device in user space that is part of this program (package softroce): " +
			"it needs no card, driver or C library, and reaches " + reach(),
		Remedy: "unset " + variable + " to check the machine's own devices",
	}
}

// reach returns a description of the peers that the device can reach.
func reach() string {
	if _, network, _ := strings.Cut(os.Getenv(variable), ":"); network != "" {
		return "other machines by UDP"
	}
	return "programs of this machine that use it, too"
}

func softConnection(ctx context.Context, _ *machine) Finding {
	addr := netip.AddrFrom4([4]byte{127, 0, 0, 1}).String()
	if err := connect(ctx, addr); err != nil {
		return Finding{Status: Fail, Found: fmt.Sprintf("to itself at %s: %v", addr, err), Remedy: whyNot(err)}
	}
	return Finding{Status: OK, Found: fmt.Sprintf("to itself at %s: a message and an RDMA write arrived", addr)}
}

// udpChecks lists the checks of the device if it uses UDP.
func udpChecks(peer Peer) []check {
	checks := []check{
		softChecks[0],
		{name: "receive buffer", needs: []string{"device"}, look: receiveBuffer},
		{name: "connection", needs: []string{"device"}, look: udpConnection},
	}
	if peer.Host == "" {
		return checks
	}
	checks = append(checks, peerChecks...)
	checks[4].needs = []string{"connection", "peer's address"}
	return checks
}

// enoughBuffer is the size of the receive buffer, in bytes, that the device
// requests for each address.
const enoughBuffer = 4 << 20

func receiveBuffer(_ context.Context, m *machine) Finding {
	most, err := number(m.read("proc/sys/net/core/rmem_max"))
	switch {
	case m.capable(capNetAdmin):
		return Finding{Status: OK, Found: size(enoughBuffer) + ", as no limit applies to this user"}
	case err != nil:
		return Finding{Status: Skipped, Found: "not checked: net.core.rmem_max cannot be read, which is the machine's, not a container's"}
	case most >= enoughBuffer:
		return Finding{Status: OK, Found: size(enoughBuffer)}
	}
	return Finding{
		Status: Warn, Found: size(most) + " for what arrives: while several queue pairs receive at once, packets may get lost, and transfers wait until they are sent again",
		Remedy: "let sockets have " + size(enoughBuffer), Commands: []string{fmt.Sprintf("sysctl -w net.core.rmem_max=%d", enoughBuffer)},
	}
}

func udpConnection(ctx context.Context, _ *machine) Finding {
	addr, err := firstAddress()
	if err == nil {
		err = connect(ctx, addr)
	}
	if err != nil {
		return Finding{Status: Fail, Found: fmt.Sprintf("to itself at %s: %v", addr, err), Remedy: whyNot(err)}
	}
	return Finding{Status: OK, Found: fmt.Sprintf("to itself at %s: a message and an RDMA write arrived", addr)}
}

// firstAddress returns the device's first address that needs no zone.
func firstAddress() (addr string, err error) {
	d, err := ibverbs.Open("")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	table, err := d.QueryGIDTable()
	if err != nil {
		return "", err
	}
	for _, e := range table {
		if a := e.GID.Addr(); !a.IsLinkLocalUnicast() {
			return a.String(), nil
		}
	}
	return "", errors.New("the device has no address")
}

// softPeer checks a peer, for the device in user space.
func softPeer(context.Context, *machine) Finding {
	return Finding{Status: Skipped, Found: "not checked: the device in user space reaches programs of this machine only"}
}
