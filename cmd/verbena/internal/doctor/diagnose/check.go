// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"os"
	"slices"
	"strings"
)

// check checks one part of the system.
type check struct {
	name  string
	lack  string              // what is missing if the check fails, in the text of checks that need it
	needs []string            // names of the checks that must succeed before this one
	where func(*machine) bool // reports whether the check applies to a machine; nil means that it always does. Reports of other machines omit the check
	look  func(context.Context, *machine) Finding
}

// checks lists the checks in an order in which a failure explains the failures
// after it.
var checks = []check{
	{name: "libraries", lack: "no C library", look: libraries},
	{name: "modules", lack: "no kernel modules", look: modules},
	{name: "device files", lack: "no access to the device files", needs: []string{"modules"}, look: deviceFiles},
	{name: "locked memory", lack: "too little locked memory", look: lockedMemory},
	{name: "container", look: container},
	{name: "limits", lack: "no room under the limits", look: limits},
	{name: "devices", lack: "no device", needs: []string{"libraries", "device files", "limits"}, look: devices},
	{name: "ports", lack: "no active port", needs: []string{"devices"}, look: ports},
	{name: "interfaces", lack: "no network interface", needs: []string{"ports"}, look: interfaces},
	{name: "addresses", lack: "no IP address", needs: []string{"interfaces"}, look: addresses},
	{name: "GIDs", lack: "no GID", needs: []string{"addresses"}, look: gids},
	{name: "routes", needs: []string{"addresses"}, look: routes},
	{name: "firewall", needs: []string{"ports"}, look: firewall},
	{name: "connection", needs: []string{"GIDs", "locked memory"}, look: connection},
	{name: "GPU memory", needs: []string{"devices"}, where: (*machine).hasGPU, look: gpuMemory},
}

// Run runs all checks on this machine and, unless peer is the zero value, the
// checks of the path to the peer.
func Run(ctx context.Context, peer Peer) Report {
	m, err := thisMachine()
	if err != nil {
		return Report{Findings: []Finding{{Check: "system", Status: Fail, Found: err.Error()}}}
	}
	name, network, _ := strings.Cut(os.Getenv(variable), ":")
	soft := name == "soft"
	switch {
	case soft && network != "":
		return m.run(ctx, udpChecks(peer))
	case soft && peer.Host != "":
		return m.run(ctx, append(slices.Clone(softChecks), check{name: "peer", look: softPeer}))
	case soft:
		return m.run(ctx, softChecks)
	case peer.Host == "":
		return m.run(ctx, checks)
	}
	m.peer = peer
	report := m.run(ctx, slices.Concat(checks, peerChecks))
	report.Peer = peer.Host
	return report
}

func (m *machine) run(ctx context.Context, checks []check) Report {
	report := Report{Works: true}
	lacking := map[string]string{} // what is missing, by the name of a check that failed or was skipped
	for _, c := range checks {
		if c.where != nil && !c.where(m) {
			continue
		}
		f := Finding{Status: Skipped}
		for _, need := range c.needs {
			if lack := lacking[need]; lack != "" && f.Found == "" {
				f.Found, lacking[c.name] = "not checked: "+lack, lack
			}
		}
		if f.Found == "" {
			f = c.look(ctx, m)
		}
		f.Check = c.name
		if f.Status == Fail {
			report.Works, lacking[c.name] = false, c.lack
		}
		report.Findings = append(report.Findings, f)
	}
	return report
}
