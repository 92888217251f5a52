// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/enum"
)

// PortAttr describes a port. The flags in Capabilities and Capabilities2 are
// constants of package libibverbs.
type PortAttr struct {
	State          link.State
	PhysicalState  link.PhysState
	LinkLayer      link.Layer
	MaxMTU         MTU
	ActiveMTU      MTU
	ActiveWidth    link.Width
	ActiveSpeed    link.LaneSpeed // speed of one lane
	GIDTableLen    int            // number of entries, including empty ones
	PKeyTableLen   int            // number of entries, including empty ones
	MaxMessageSize uint32         // bytes
	LID            uint16         // 0 on Ethernet
	SMLID          uint16         // LID of the subnet manager
	SMSL           uint8          // service level to reach the subnet manager
	LMC            uint8          // the port has 1<<LMC LIDs, starting with LID
	MaxVLs         int            // virtual lanes
	SubnetTimeout  uint8          // n: the longest delay through the subnet is 4.096 us * 2^n
	InitTypeReply  uint8          // what the subnet manager preserved when it initialised the port
	GRHRequired    bool           // whether addresses need a GID even within the subnet
	BadPKeys       uint32         // number of packets received with a wrong P_Key
	QKeyViolations uint32         // number of datagrams received with a wrong Q_Key
	Capabilities   libibverbs.PortCapFlags
	Capabilities2  libibverbs.PortCapFlags2
}

// Rate returns the speed of all lanes together, or 0 if it is unknown.
func (p PortAttr) Rate() link.Speed { return p.ActiveSpeed.Rate() * link.Speed(p.ActiveWidth.Lanes()) }

// virtualLanes maps C's code to a number of virtual lanes.
var virtualLanes = [...]int{1: 1, 2: 2, 3: 4, 4: 8, 5: 15}

// QueryPort returns the attributes of a port; ports count from 1. See
// ibv_query_port(3).
func (d *Device) QueryPort(port int) (PortAttr, error) {
	if err := d.self().Use(); err != nil {
		return PortAttr{}, err
	}
	defer d.object.Done()
	n, err := portNumber("ibv_query_port", d, port)
	if err != nil {
		return PortAttr{}, err
	}
	var a libibverbs.PortAttr
	if err := libibverbs.QueryPort(d.raw, n, &a); err != nil {
		return PortAttr{}, wrap(portName(d, port), err)
	}
	return portAttr(&a), nil
}

func portAttr(a *libibverbs.PortAttr) PortAttr {
	speed := a.ActiveSpeedEx
	if speed == 0 { // an older library
		speed = uint32(a.ActiveSpeed)
	}
	lanes := 0
	if int(a.MaxVlNum) < len(virtualLanes) {
		lanes = virtualLanes[a.MaxVlNum]
	}
	return PortAttr{
		State:          a.State,
		PhysicalState:  link.PhysState(a.PhysState),
		LinkLayer:      link.Layer(a.LinkLayer),
		MaxMTU:         MTU(a.MaxMtu),
		ActiveMTU:      MTU(a.ActiveMtu),
		ActiveWidth:    link.Width(a.ActiveWidth),
		ActiveSpeed:    link.LaneSpeed(speed),
		GIDTableLen:    int(a.GidTblLen),
		PKeyTableLen:   int(a.PkeyTblLen),
		MaxMessageSize: a.MaxMsgSz,
		LID:            a.Lid,
		SMLID:          a.SmLid,
		SMSL:           a.SmSl,
		LMC:            a.Lmc,
		MaxVLs:         lanes,
		SubnetTimeout:  a.SubnetTimeout,
		InitTypeReply:  a.InitTypeReply,
		GRHRequired:    uint32(a.Flags)&uint32(libibverbs.IBV_QPF_GRH_REQUIRED) != 0,
		BadPKeys:       a.BadPkeyCntr,
		QKeyViolations: a.QkeyViolCntr,
		Capabilities:   a.PortCapFlags,
		Capabilities2:  libibverbs.PortCapFlags2(a.PortCapFlags2),
	}
}

// QueryPortSpeed returns the effective speed of a port, which may be
// less than PortAttr.Rate; see ibv_query_port_speed(3). It fails with an error
// matching errors.ErrUnsupported before rdma-core 62, or if the device cannot
// tell.
func (d *Device) QueryPortSpeed(port int) (link.Speed, error) {
	if err := d.self().Use(); err != nil {
		return 0, err
	}
	defer d.object.Done()
	n, err := portNumber("ibv_query_port_speed", d, port)
	if err != nil {
		return 0, err
	}
	speed, err := libibverbs.QueryPortSpeed(d.raw, uint32(n))
	if err != nil {
		return 0, wrap(portName(d, port), err)
	}
	return link.Speed(speed) / 10, nil // C counts in units of 100 Mb/s
}

// portNumber checks a port number before converting it to C's smaller type.
func portNumber(op string, d *Device, port int) (uint8, error) {
	if err := inRange("port", port, 1, 255); err != nil {
		return 0, cerr.Argument(op, d.Name(), err)
	}
	return uint8(port), nil
}

func portName(c *Device, port int) string { return fmt.Sprintf("%s port %d", c.Name(), port) }

// MarshalText returns what String returns.
func (m MTU) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText parses the text that String returns: 256, 512, 1024, 2048 or
// 4096 bytes, 0 for none, or MTU(n).
func (m *MTU) UnmarshalText(text []byte) error { return enum.UnmarshalText(&mtus, text, m) }

// NetDev returns the name of a port's network interface, for RoCE or IP over
// InfiniBand. It returns "" if the port has none in this network namespace.
func (d *Device) NetDev(port int) (string, error) {
	entries, err := d.QueryPortGIDs(port)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if e.NetDev != "" { // the first interface is not a VLAN
			return e.NetDev, nil
		}
	}
	return kernelSysfs.netDev(d.Name(), port)
}

// netDevs maps each of the device's network interfaces to its port.
func (d *Device) netDevs() (map[string]int, error) {
	interfaces := map[string]int{}
	entries, err := d.QueryGIDTable()
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.NetDev != "" {
			interfaces[e.NetDev] = e.Port
		}
	}
	ports, err := d.portNumbers()
	if err != nil {
		return nil, err
	}
	for _, port := range ports {
		name, err := kernelSysfs.netDev(d.Name(), port)
		if err != nil {
			return nil, err
		}
		if _, known := interfaces[name]; !known && name != "" {
			interfaces[name] = port
		}
	}
	return interfaces, nil
}

// netDev returns the first network interface of the device's hardware that
// belongs to the port, or "" if there is none.
func (s sysfs) netDev(device string, port int) (string, error) {
	dir := filepath.Join(string(s), device, "device", "net")
	interfaces, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	for _, i := range interfaces { // sorted by name: ib0 comes before ib0.8001
		b, err := os.ReadFile(filepath.Join(dir, i.Name(), "dev_port"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // renamed or gone in the meantime
		}
		if err != nil {
			return "", err
		}
		if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && n == port-1 {
			return i.Name(), nil
		}
	}
	return "", nil
}
