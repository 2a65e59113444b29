/* The least that reading YAML can cost: libyaml's events of each file on the list, thrown away.
 *
 * events LIST [WRITTEN]: LIST names a file a line; for each line "SIZE PATH" of WRITTEN a file of that size is made,
 * and for two lines "= PATH" and "OTHER" what is at OTHER gets another name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

static void fail(const char *what) { perror(what); exit(1); }

static char *read_file(const char *path, size_t *size) {
    struct stat about;
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &about) < 0) fail(path);
    char *data = malloc(about.st_size + 1);
    if (read(file, data, about.st_size) != about.st_size) fail(path);
    close(file);
    *size = about.st_size;
    return data;
}

static void parse(const char *path) {
    size_t size;
    char *data = read_file(path, &size);
    yaml_parser_t parser;
    yaml_parser_initialize(&parser);
    yaml_parser_set_input_string(&parser, (unsigned char *)data, size);
    for (int done = 0; !done;) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) { fprintf(stderr, "%s: no YAML\n", path); exit(1); }
        done = event.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    free(data);
}

static void make_folders(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(path, 0755) < 0 && errno != EEXIST) fail(path);
        *slash = '/';
    }
}

static void write_file(char *path, size_t size) {
    static char content[1 << 20];
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
    if (file < 0 && errno == ENOENT) { /* its folders first, once each */
        make_folders(path);
        file = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
    }
    if (file < 0) fail(path);
    for (size_t part; size; size -= part) {
        part = size < sizeof content ? size : sizeof content;
        if (write(file, content, part) != (ssize_t)part) fail(path);
    }
    close(file);
}

static void link_file(const char *from, char *path) {
    if (link(from, path) == 0) return;
    if (errno != ENOENT) fail(path);
    make_folders(path);
    if (link(from, path) < 0) fail(path);
}

static void each_line(const char *path, void (*of)(char *)) {
    char *line = NULL;
    size_t room = 0;
    FILE *list = fopen(path, "r");
    if (!list) fail(path);
    for (ssize_t length; (length = getline(&line, &room, list)) > 0;) {
        if (line[length - 1] == '\n') line[length - 1] = 0;
        of(line);
    }
    free(line);
    fclose(list);
}

static void parse_line(char *line) { parse(line); }

static char *linked; /* that is to be the other name of what the next line says */

static void write_line(char *line) {
    char *path;
    if (linked) {
        link_file(line, linked);
        free(linked);
        linked = NULL;
        return;
    }
    if (line[0] == '=') {
        linked = strdup(line + 2);
        return;
    }
    size_t size = strtoul(line, &path, 10);
    write_file(path + 1, size);
}

int main(int count, char **arguments) {
    if (count < 2) return 2;
    each_line(arguments[1], parse_line);
    if (count > 2) each_line(arguments[2], write_line);
    return 0;
}
