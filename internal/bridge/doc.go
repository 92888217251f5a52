// Package bridge joins packages of this module where users should see no seam:
// one that exports nothing for its sibling alone fills in functions here, as it
// is initialised, and the sibling calls them. They take and return the
// siblings' types as any, since this package is below both; the caller wraps
// them in functions with types.
package bridge
