package ibverbs

// SysfsGIDTable is QueryGIDTable by way of /sys.
func (c *Context) SysfsGIDTable() ([]GIDEntry, error) {
	ports, err := c.portNumbers()
	if err != nil {
		return nil, err
	}
	return c.sysfsGIDs(ports)
}

// SysfsGIDEntry is QueryGIDEntry by way of /sys.
func (c *Context) SysfsGIDEntry(port, index int) (GIDEntry, error) { return c.sysfsGID(port, index) }
