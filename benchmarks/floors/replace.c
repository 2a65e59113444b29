/* The least that replacing files durably can cost: each is written beside its place, synced at once, and renamed.
 *
 * replace FOLDER COUNT SIZE ROUNDS */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void fail(const char *what) { perror(what); exit(1); }

int main(int count, char **arguments) {
    if (count != 5 || chdir(arguments[1]) < 0) return 2;
    int files = atoi(arguments[2]), size = atoi(arguments[3]), rounds = atoi(arguments[4]);
    char *content = calloc(1, size + 1), staged[32], placed[32];
    int folder = open(".", O_RDONLY | O_DIRECTORY);
    for (int round = 0; round < rounds; round++) {
        for (int each = 0; each < files; each++) {
            snprintf(staged, sizeof staged, ".%d", each);
            int file = open(staged, O_WRONLY | O_CREAT | O_TRUNC, 0644);
            if (file < 0 || write(file, content, size) != size) fail(staged);
            close(file);
        }
        if (syncfs(folder) < 0) fail("syncfs");
        for (int each = 0; each < files; each++) {
            snprintf(staged, sizeof staged, ".%d", each);
            snprintf(placed, sizeof placed, "%d", each);
            if (rename(staged, placed) < 0) fail(placed);
        }
        if (syncfs(folder) < 0) fail("syncfs");
    }
    return 0;
}
