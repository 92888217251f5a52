package ibverbs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// DeviceInfo is everything about a device that ibv_devinfo and show_gids
// print. It can be marshaled to JSON and back.
type DeviceInfo struct {
	Device      DeviceEntry
	BoardID     string // the model of the card, empty if the driver does not tell
	CompVectors int    // see Device.CompVectors
	Attr        DeviceAttr
	Ports       []PortInfo
}

// PortInfo is everything about a port.
type PortInfo struct {
	Port int
	PortAttr
	Rate   float64    // Gb/s, PortAttr.Rate
	NetDev string     // the network interface, empty if there is none
	GIDs   []GIDEntry // those that are not empty
}

// QueryDeviceInfo opens the device of the given name, the first if it is
// empty, asks it about everything, and closes it. If there is no such device,
// the error is ErrNoDevice.
func QueryDeviceInfo(name string) (DeviceInfo, error) {
	c, err := Open(name)
	if err != nil {
		return DeviceInfo{}, err
	}
	info, err := c.QueryInfo()
	return info, errors.Join(err, c.Close())
}

// QueryInfo asks the device about everything: what QueryDevice, QueryPort,
// QueryPortGIDs, NetDev and CompVectors return, for all ports. The first error ends it.
func (d *Device) QueryInfo() (DeviceInfo, error) {
	if err := d.self().Use(); err != nil {
		return DeviceInfo{}, err
	}
	defer d.object.Done()
	var info DeviceInfo
	var err error
	if info.Device, err = describe(d.raw.Device); err != nil {
		return info, wrap(d.Name(), err)
	}
	if info.BoardID, err = kernelSysfs.boardID(d.Name()); err != nil {
		return info, err
	}
	info.CompVectors = d.CompVectors()
	if info.Attr, err = d.QueryDevice(); err != nil {
		return info, err
	}
	gids, err := d.QueryGIDTable()
	if err != nil {
		return info, err
	}
	for port := 1; port <= info.Attr.Ports; port++ {
		p := PortInfo{Port: port}
		if p.PortAttr, err = d.QueryPort(port); err != nil {
			return info, err
		}
		p.Rate = p.PortAttr.Rate()
		for _, e := range gids {
			if e.Port == port {
				p.GIDs = append(p.GIDs, e)
			}
		}
		if p.NetDev, err = d.NetDev(port); err != nil {
			return info, err
		}
		info.Ports = append(info.Ports, p)
	}
	return info, nil
}

// boardID returns what the driver calls the model of the card.
func (s sysfs) boardID(device string) (string, error) {
	b, err := os.ReadFile(filepath.Join(string(s), device, "board_id"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(b)), err
}
