// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/ibverbs"
)

// devices queries every device for the checks that follow.
func devices(_ context.Context, m *machine) Finding {
	listed, err := ibverbs.Devices()
	if err != nil {
		return Finding{Status: Fail, Found: err.Error(), Remedy: askKernel}
	}
	var names []string
	for _, d := range listed {
		info, e := ibverbs.QueryDeviceInfo(d.Name)
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		m.devices = append(m.devices, info)
		names = append(names, d.Name)
	}
	return m.judgeDevices(names, err)
}

const askKernel = "see the kernel's messages about it: dmesg"

// judgeDevices returns the finding for the devices that could be queried.
func (m *machine) judgeDevices(names []string, err error) Finding {
	unlisted := slices.DeleteFunc(m.list("sys/class/infiniband"), func(name string) bool {
		return slices.Contains(names, name) || err != nil
	})
	status := Warn
	if len(names) == 0 {
		status = Fail
	}
	switch {
	case err != nil:
		return Finding{Status: status, Found: err.Error(), Remedy: askKernel}
	case len(unlisted) > 0:
		f := Finding{
			Status: status, Found: "libibverbs has no provider for " + strings.Join(unlisted, ", "),
			Remedy: "install libibverbs' provider for the driver",
		}
		if command := m.install("ibverbs-providers", "libibverbs"); command != "" {
			f.Commands = []string{command}
		}
		return f
	case len(names) == 0:
		return m.noDevice()
	}
	return Finding{Status: OK, Found: strings.Join(names, ", ")}
}

// rdmaModules maps a card's Ethernet driver to the module that adds RDMA.
var rdmaModules = map[string]string{
	"mlx4_core": "mlx4_ib", "mlx5_core": "mlx5_ib", "bnxt_en": "bnxt_re", "cxgb4": "iw_cxgb4", "hns3": "hns_roce_hw_v2",
	"i40e": "irdma", "ice": "irdma", "ionic": "ionic_rdma", "mana": "mana_ib", "qede": "qedr",
}

func (m *machine) noDevice() Finding {
	f := Finding{Status: Fail, Found: "there is no RDMA device"}
	const pass = "; if it has one, pass /dev/infiniband to the container, and the device to its network namespace"
	switch {
	case m.inContainer():
		f.Remedy = m.where("", "make one on the host"+pass, "make one on the node"+pass+", as its device plugin and SR-IOV's CNI plugin do")
		return f
	case m.inOtherNetwork():
		f.Remedy = "look in the first network namespace too: if rdma system says \"netns exclusive\", " +
			"move its devices here with: rdma dev set NAME netns NAMESPACE"
		return f
	}
	for _, d := range m.netDevs {
		target, _ := filepath.EvalSymlinks(m.path("sys/class/net/" + d.name + "/device/driver"))
		if module := rdmaModules[filepath.Base(target)]; module != "" {
			f.Found += ", but " + d.name + " is on a card that may support RDMA"
			f.Commands = []string{"modprobe " + module}
			return f
		}
	}
	f.Remedy = "load the card's driver, or make a Soft-RoCE device, which needs no card"
	if d := m.candidate(); d != "" {
		f.Commands = []string{"rdma link add rxe0 type rxe netdev " + d}
	} else {
		f.Remedy += ", on an Ethernet interface: rdma link add rxe0 type rxe netdev ETH"
	}
	return f
}

// candidate returns a network interface on which a device in software can be
// created.
func (m *machine) candidate() string {
	best, bestRank := "", 0
	for _, d := range m.netDevs {
		rank := 0
		switch ethernet := m.read("sys/class/net/"+d.name+"/type") == "1"; {
		case d.loopback, !ethernet:
		case d.up && len(d.reachable()) > 0 && !m.exists("sys/class/net/"+d.name+"/bridge"):
			rank = 3
		case d.up:
			rank = 2
		default:
			rank = 1
		}
		if rank > bestRank {
			best, bestRank = d.name, rank
		}
	}
	return best
}

// portName returns the name of a port in findings.
func portName(d ibverbs.DeviceInfo, p ibverbs.PortInfo) string {
	return fmt.Sprintf("%s port %d", d.Device.Name, p.Port)
}
