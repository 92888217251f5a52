package ibverbs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// NetDev returns the name of a port's network interface: that of RoCE, or of
// IP over InfiniBand. It is empty if the port has none in this network
// namespace.
func (d *Device) NetDev(port int) (string, error) {
	entries, err := d.QueryPortGIDs(port)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if e.NetDev != "" { // the first is not that of a VLAN
			return e.NetDev, nil
		}
	}
	return kernelSysfs.netDev(d.Name(), port)
}

// netDevs returns all of the device's network interfaces with their ports.
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

// netDev returns the first network interface of the hardware below the device
// that belongs to the port, empty if there is none.
func (s sysfs) netDev(device string, port int) (string, error) {
	dir := filepath.Join(string(s), device, "device", "net")
	interfaces, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	for _, i := range interfaces { // in the order of names: ib0 comes before ib0.8001
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
