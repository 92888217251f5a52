package ibverbs

// SysfsGIDTable is QueryGIDTable by way of /sys.
func (d *Device) SysfsGIDTable() ([]GIDEntry, error) {
	ports, err := d.portNumbers()
	if err != nil {
		return nil, err
	}
	return d.sysfsGIDs(ports)
}

// SysfsGIDEntry is QueryGIDEntry by way of /sys.
func (d *Device) SysfsGIDEntry(port, index int) (GIDEntry, error) { return d.sysfsGID(port, index) }
