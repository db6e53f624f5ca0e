package cluster

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// ClientsRoot returns a folder with the interpreters and client libraries of ClientsImage, which it downloads the first
// time. A process that has the folder as its root can run them without a container.
func (c *Cluster) ClientsRoot(ctx context.Context) (string, error) {
	root, err := c.debianRoot(ctx, clientsSuite, clientsPackages...)
	if err != nil {
		return "", err
	}
	for _, name := range []string{"lib", "lib64"} { // programs look for their loader there, as in the image
		err := os.Symlink("usr/"+name, filepath.Join(root, name))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	return root, nil
}
